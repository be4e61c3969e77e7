"""Log-probabilities, entropies and their gradients against plain full-vocabulary computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rlinf_model_hf_lm import head
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM
from torch import Tensor, nn

from rlinf_core.api import PolicyOutputs
from rlinf_core.errors import ModelError
from rlinf_core.types import Prompt, Sample, Sampling

BOTH = frozenset({"logprobs", "entropy"})


def sample(prompt: list[int], response: list[int]) -> Sample:
    return Sample(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(len(response), np.bool_),
        logprobs=np.zeros(len(response), np.float32),
        weight_version=0,
        prompt=Prompt(0, np.array(prompt), ""),
        response_ids=np.array(response),
    )


def rows() -> list[Sample]:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(3, 21, n).tolist() for n in (6, 2, 9)]
    lengths = (5, 1, 3, 8, 2, 6, 4, 1)
    return [sample(prompts[i % 3], rng.integers(2, 21, n).tolist()) for i, n in enumerate(lengths)]


def by_hand(module: nn.Module, row: Sample, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[*row.prompt.token_ids.tolist(), *row.response_ids.tolist()]])
    logits = module(input_ids=ids).logits[0, len(row.prompt.token_ids) - 1 : -1].double() / temperature
    logs = logits.log_softmax(-1)
    return logs.gather(1, torch.from_numpy(row.response_ids)[:, None])[:, 0], -(logs.exp() * logs).sum(-1)


def total(outputs: PolicyOutputs, weights_BT: Tensor) -> Tensor:
    assert outputs.entropy_BT is not None
    return (outputs.logprobs_BT * weights_BT).sum() + 0.3 * (outputs.entropy_BT * weights_BT.square()).sum()


def gradients(module: nn.Module, loss: Tensor) -> list[Tensor]:
    module.zero_grad(set_to_none=True)
    loss.backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("preset", ["char-llama", "tiny-qwen2", "tiny-qwen3"])
def test_values_and_gradients_equal_row_by_row_computation(preset: str, packed: bool) -> None:
    model = HFLM(HFLMConfig(preset=preset, packing="auto" if packed else "never"))
    module, batch = model.module(1), rows()
    outputs = model.policy_outputs(module, model.collate(batch), BOTH, Sampling(temperature=0.7))
    weights_BT = torch.randn(outputs.logprobs_BT.shape)
    expected = torch.zeros(())
    for index, row in enumerate(batch):
        logprobs_T, entropy_T = by_hand(module, row, 0.7)
        length = len(row.response_ids)
        torch.testing.assert_close(
            outputs.logprobs_BT[index, :length].double(), logprobs_T, rtol=0, atol=1e-5
        )
        assert outputs.entropy_BT is not None
        torch.testing.assert_close(outputs.entropy_BT[index, :length].double(), entropy_T, rtol=0, atol=1e-5)
        assert not outputs.logprobs_BT[index, length:].any()
        weights_T = weights_BT[index, :length]
        expected = expected + (logprobs_T * weights_T).sum() + 0.3 * (entropy_T * weights_T.square()).sum()
    ours = gradients(module, total(outputs, weights_BT))
    for grad, reference in zip(ours, gradients(module, expected), strict=True):
        torch.testing.assert_close(grad, reference, rtol=1e-4, atol=1e-5)


def test_padding_width_and_content_change_nothing() -> None:
    model = HFLM(HFLMConfig(preset="tiny-llama", packing="never"))
    module, batch = model.module(1), rows()
    plain = model.policy_outputs(module, model.collate(batch), BOTH).logprobs_BT
    inputs = model.collate(batch, width=13)
    lengths_B1 = (inputs["prompt_lengths"] + inputs["response_lengths"])[:, None]
    padding = torch.arange(inputs["input_ids"].shape[1]) >= lengths_B1
    inputs["input_ids"][padding] = torch.randint(0, 100, (int(padding.sum()),))
    wide = model.policy_outputs(module, inputs, BOTH).logprobs_BT
    assert wide.shape == (8, 13)
    torch.testing.assert_close(wide[:, : plain.shape[1]], plain, rtol=0, atol=1e-6)


def test_equal_prompts_are_computed_once() -> None:
    model = HFLM(HFLMConfig(preset="tiny-llama"))
    module, prompt = model.module(0), list(range(3, 20))
    batch = [sample(prompt, [4, 5, 6]) for _ in range(8)]
    seen: list[int] = []
    module.model.layers[0].mlp.gate_proj.register_forward_hook(
        lambda _m, args, _out: seen.append(args[0].numel())
    )
    model.policy_outputs(module, model.collate(batch), frozenset({"logprobs"}))
    assert seen == [(17 + 8 * 2) * 128]  # the prompt once, and each response without its last token


@pytest.mark.parametrize("elements", [21 * 3, 1 << 22])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=1.7), Sampling(temperature=0.8, top_k=7, top_p=0.8)],
    ids=["plain", "temperature", "truncated"],
)
def test_the_fused_head_equals_autograd_through_full_logits(
    sampling: Sampling, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlinf_core.rl.logprobs import apply_sampling_transform, entropy, gather_logprobs

    monkeypatch.setattr(head, "CHUNK_ELEMENTS", elements)
    torch.manual_seed(0)
    hidden, weight = torch.randn(10, 6, requires_grad=True), torch.randn(21, 6, requires_grad=True)
    ids, scale = torch.randint(0, 21, (10,)), torch.randn(10)
    logprobs, entropies = head.fused_logprobs(hidden, weight, ids, sampling, want_entropy=True)
    assert entropies is not None
    ours = torch.autograd.grad((logprobs * scale + entropies * scale.square()).sum(), [hidden, weight])
    logits = apply_sampling_transform(hidden @ weight.t(), sampling, ids)
    expected, spread = gather_logprobs(logits, ids), entropy(logits)
    theirs = torch.autograd.grad((expected * scale + spread * scale.square()).sum(), [hidden, weight])
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, spread)
    for ours_grad, theirs_grad in zip(ours, theirs, strict=True):
        torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-4, atol=1e-5)


def test_an_architecture_with_capped_logits_uses_its_own_forward() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    module = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            final_logit_softcapping=0.5,
        )
    )
    model, batch = HFLM(HFLMConfig(preset="char-llama")), rows()
    outputs = model.policy_outputs(module, model.collate(batch), BOTH)
    for index, row in enumerate(batch):
        logprobs_T, _ = by_hand(module, row)
        computed = outputs.logprobs_BT[index, : len(row.response_ids)].double()
        torch.testing.assert_close(computed, logprobs_T, rtol=0, atol=1e-5)


def test_an_end_forbidden_in_rollout_is_forbidden_in_training() -> None:
    model = HFLM(HFLMConfig(preset="char-llama"))
    module, batch = model.module(0), [sample([1, 5], [7, 8, 9, 2])]
    free = model.policy_outputs(module, model.collate(batch), BOTH, Sampling()).logprobs_BT[0]
    bound = model.policy_outputs(module, model.collate(batch), BOTH, Sampling(min_new_tokens=2)).logprobs_BT[
        0
    ]
    assert (bound[:2] > free[:2]).all()
    torch.testing.assert_close(bound[2:], free[2:])


def test_the_end_token_is_trained_even_if_it_pads() -> None:
    model = HFLM(HFLMConfig(preset="char-llama"))
    module = model.module(0)
    inputs = model.collate([sample([1, 5], [7, 2]), sample([1, 5], [7, 8, 9, 2])])
    inputs["input_ids"][0, 4:] = 2  # padding with the end-of-sequence token
    logprobs_BT = model.policy_outputs(module, inputs, BOTH).logprobs_BT
    assert (logprobs_BT[0] != 0).tolist() == [True, True, False, False]


def test_values_and_foreign_rows_are_refused() -> None:
    model = HFLM(HFLMConfig(preset="char-llama"))
    with pytest.raises(ModelError, match=r"no value head: call add_value_head\(\) before module\(\)"):
        model.policy_outputs(model.module(), model.collate(rows()), frozenset({"values"}))
    with pytest.raises(ModelError, match="given 0 rows"):
        model.collate([])
    with pytest.raises(ModelError, match="width 2 is less than the longest response, 8"):
        model.collate(rows(), width=2)


@pytest.mark.parametrize("packed", [True, False])
def test_adapters_and_bfloat16_autocast_are_followed(packed: bool) -> None:
    from peft import LoraConfig, get_peft_model

    model = HFLM(HFLMConfig(preset="tiny-qwen3", packing="auto" if packed else "never"))
    module = get_peft_model(model.module(1), LoraConfig(r=4, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    batch = rows()
    outputs = model.policy_outputs(module, model.collate(batch), BOTH)
    for index, row in enumerate(batch):
        logprobs_T, _ = by_hand(module, row)
        computed = outputs.logprobs_BT[index, : len(row.response_ids)].double()
        torch.testing.assert_close(computed, logprobs_T, rtol=0, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        low = model.policy_outputs(module, model.collate(batch), BOTH)
    assert low.logprobs_BT.dtype == torch.float32
    grads = gradients(module, total(low, torch.ones_like(low.logprobs_BT)))
    assert len(grads) == 2 * 7 * 4
    assert all(bool(grad.isfinite().all()) for grad in grads)
    torch.testing.assert_close(low.logprobs_BT, outputs.logprobs_BT, rtol=0, atol=0.1)
