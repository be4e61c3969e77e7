"""Log-probabilities, entropies and the sampling transform against torch and hand-made nuclei."""

from __future__ import annotations

import math

import pytest
import torch

from rlinf_core.rl.logprobs import apply_sampling_transform, entropy, gather_logprobs, is_identity
from rlinf_core.types import Sampling

PROBABILITIES = torch.tensor([0.4, 0.05, 0.3, 0.15, 0.1])


def kept(sampling: Sampling) -> list[int]:
    transformed = apply_sampling_transform(PROBABILITIES.log(), sampling)
    return torch.isfinite(transformed).nonzero().flatten().tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_gathered_logprobs_equal_a_full_log_softmax_with_its_gradient(temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 11, requires_grad=True)
    twin = logits.detach().clone().requires_grad_()
    ids = torch.randint(0, 11, (3, 4))
    ours = gather_logprobs(logits, ids, temperature)
    peer = (twin / temperature).log_softmax(-1).gather(-1, ids[..., None]).squeeze(-1)
    ours.sum().backward()
    peer.sum().backward()
    torch.testing.assert_close(ours, peer)
    torch.testing.assert_close(logits.grad, twin.grad)


def test_logprobs_of_bfloat16_logits_are_float32_and_stay_finite_for_huge_logits() -> None:
    logits = torch.tensor([[3e4, -3e4, 3e4]], dtype=torch.bfloat16)
    logprobs = gather_logprobs(logits, torch.tensor([0]))
    assert logprobs.dtype == torch.float32
    assert logprobs.item() == pytest.approx(-math.log(2), abs=4e-3)  # float32 has that step at 3e4


def test_entropy_ignores_excluded_tokens_and_has_a_finite_gradient() -> None:
    logits = torch.tensor([0.0, 0.0, -torch.inf, 0.0], requires_grad=True)
    value = entropy(logits)
    value.backward()
    assert value.item() == pytest.approx(math.log(3))
    assert torch.isfinite(logits.grad).all()
    peer = torch.distributions.Categorical(PROBABILITIES).entropy()
    assert entropy(PROBABILITIES.log()).item() == pytest.approx(peer.item(), abs=1e-6)


def test_top_k_keeps_the_k_most_probable() -> None:
    assert kept(Sampling(top_k=2)) == [0, 2]
    assert kept(Sampling(top_k=50)) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_token_that_crosses_the_bound_and_never_fewer_than_one() -> None:
    assert kept(Sampling(top_p=0.69)) == [0, 2]
    assert kept(Sampling(top_p=0.75)) == [0, 2, 3]
    assert kept(Sampling(top_p=0.01)) == [0]


def test_top_p_is_taken_of_the_renormalised_top_k_after_the_temperature() -> None:
    # of the two largest, .4 / .7 = .571 already holds more than .55
    assert kept(Sampling(top_k=2, top_p=0.55)) == [0]
    # at temperature 2 the two largest hold only .300 + .260
    assert kept(Sampling(top_p=0.6, temperature=2.0)) == [0, 2, 3]
    assert kept(Sampling(top_p=0.6)) == [0, 2]


def test_transformed_logits_normalise_over_the_kept_tokens_with_gradient() -> None:
    logits = PROBABILITIES.log().requires_grad_()
    logprob = gather_logprobs(apply_sampling_transform(logits, Sampling(top_k=2)), torch.tensor(2))
    logprob.backward()
    assert logprob.item() == pytest.approx(math.log(0.3 / 0.7), abs=1e-6)
    torch.testing.assert_close(logits.grad, torch.tensor([-4 / 7, 0.0, 4 / 7, 0.0, 0.0]))


def test_a_drawn_token_is_never_cut_by_the_trainer() -> None:
    logits = PROBABILITIES.log().expand(2, 5)
    drawn = torch.tensor([1, 0])
    transformed = apply_sampling_transform(logits, Sampling(top_k=2), keep_ids=drawn)
    assert torch.isfinite(transformed).int().tolist() == [[1, 1, 1, 0, 0], [1, 0, 1, 0, 0]]


def test_ties_with_the_last_kept_token_are_kept_on_both_sides() -> None:
    transformed = apply_sampling_transform(torch.tensor([1.0, 1.0, 1.0, 0.0]), Sampling(top_k=2))
    assert torch.isfinite(transformed).tolist() == [True, True, True, False]


def test_greedy_and_plain_sampling_leave_logits_alone() -> None:
    logits = torch.randn(7)
    for sampling in (Sampling(), Sampling(temperature=0.0, top_k=3)):
        assert is_identity(sampling)
        assert torch.equal(apply_sampling_transform(logits, sampling), logits)
    assert not is_identity(Sampling(temperature=0.5))
