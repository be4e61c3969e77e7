"""Fused log-probabilities against a full log-softmax in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlinf_core.rl import logprobs as logprobs_module
from rlinf_core.rl.logprobs import apply_sampling_transform, fused_logprobs, logprobs_under
from rlinf_core.types import Sampling

V = 13
# Half types: the rounding of a gradient of size 1 to 8 and 11 bits.
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}


def full(logits_V: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    logs_V = logits_V.log_softmax(-1)
    return logs_V.gather(-1, ids[..., None]).squeeze(-1), -(logs_V.exp() * logs_V.clamp_min(-1e9)).sum(-1)


def case(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, excluded: int = 0
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits_V = 3 * torch.randn(*shape, V)
    logits_V[..., :excluded] = -torch.inf
    return logits_V.to(dtype), torch.randint(excluded, V, shape)


def assert_equal_to_full(logits_V: Tensor, ids: Tensor, temperature: float, want_entropy: bool) -> None:
    ours_V = logits_V.detach().requires_grad_()
    exact_V = logits_V.detach().double().requires_grad_()
    found, spread = fused_logprobs(ours_V, ids, temperature, want_entropy, chunk_rows=3)
    expected, expected_spread = full(exact_V / temperature, ids)
    scale, spread_scale = torch.randn(ids.shape), torch.randn(ids.shape)
    (expected * scale + (expected_spread * spread_scale if want_entropy else 0.0)).sum().backward()
    (found * scale + (0.0 if spread is None else spread * spread_scale)).sum().backward()
    assert found.dtype == (torch.float64 if logits_V.dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    assert (spread is None) is not want_entropy
    if spread is not None:
        torch.testing.assert_close(spread.double(), expected_spread, rtol=0, atol=1e-5)
    assert ours_V.grad is not None
    assert ours_V.grad.dtype == logits_V.dtype
    size = max(1.0, float(exact_V.grad.abs().max())) if exact_V.grad.numel() else 1.0
    close = TOLERANCES[logits_V.dtype] * size
    torch.testing.assert_close(ours_V.grad.double(), exact_V.grad, rtol=0, atol=close)


@pytest.mark.parametrize("want_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_values_and_gradients_equal_the_full_log_softmax(
    dtype: torch.dtype, temperature: float, want_entropy: bool
) -> None:
    assert_equal_to_full(*case((10,), dtype), temperature, want_entropy)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (4, 5), (2, 3, 4)])
def test_any_leading_axes_will_do(shape: tuple[int, ...]) -> None:
    assert_equal_to_full(*case(shape), 0.7, True)


def test_layouts_that_are_not_contiguous_give_the_same() -> None:
    logits_V, ids = case((4, 6))
    assert_equal_to_full(logits_V[:, :-1], ids[:, 1:], 0.7, True)
    assert_equal_to_full(logits_V.transpose(0, 1), ids.t(), 0.7, True)


@pytest.mark.parametrize("want_entropy", [False, True])
def test_excluded_tokens_have_no_weight_and_no_gradient(want_entropy: bool) -> None:
    logits_V, ids = case((7,), excluded=4)
    assert_equal_to_full(logits_V, ids, 1.3, want_entropy)
    impossible, _ = fused_logprobs(logits_V, torch.zeros(7, dtype=torch.int64))
    assert (impossible == -torch.inf).all()


def test_huge_logits_keep_their_precision() -> None:
    logits = torch.tensor([[3e4, -3e4, 3e4]], requires_grad=True)
    found, spread = fused_logprobs(logits, torch.tensor([0]), want_entropy=True)
    found.sum().backward()
    assert found.item() == pytest.approx(-math.log(2), abs=1e-6)
    assert spread is not None
    assert spread.item() == pytest.approx(math.log(2), abs=1e-6)
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, 0.0, -0.5]]))


def test_chunks_change_nothing_and_are_chosen_by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    logits_V, ids = case((50,))
    whole, _ = fused_logprobs(logits_V, ids)
    sizes: list[int] = []
    softmax = torch.log_softmax
    monkeypatch.setattr(logprobs_module, "CPU_CHUNK", 16 * V)
    monkeypatch.setattr(
        torch, "log_softmax", lambda x, *args, **named: sizes.append(len(x)) or softmax(x, *args, **named)
    )
    parts, _ = fused_logprobs(logits_V, ids)
    assert sizes == [16, 16, 16, 2]
    assert torch.equal(parts, whole)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.6), Sampling(temperature=0.6, top_k=3)],
)
def test_log_probabilities_under_a_sampling_are_those_of_its_transformed_logits(sampling: Sampling) -> None:
    logits_V, ids = case((9,))
    found, spread = logprobs_under(logits_V, ids, sampling, want_entropy=True)
    expected, expected_spread = full(apply_sampling_transform(logits_V, sampling, ids), ids)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(spread, expected_spread)
