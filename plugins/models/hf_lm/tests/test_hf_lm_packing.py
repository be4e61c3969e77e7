"""Packed rows against each row on its own, for every architecture that is said to take them."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_hf_lm import attention, layout, outputs, packing, value
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlinf_core.api import PolicyOutputs
from rlinf_core.errors import ModelError
from rlinf_core.types import Prompt, Sample, Sampling

ALL = frozenset({"logprobs", "entropy", "values"})
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4, "moe_intermediate_size": 16}
HEADS = ("ernie4_5", "gemma", "glm", "glm4", "helium", "ministral", "qwen3", "seed_oss")
OWN: dict[str, dict[str, Any]] = {
    **{name: {"head_dim": 8} for name in HEADS},
    **dict.fromkeys(("mixtral", "olmoe", "granitemoe"), EXPERTS),
    "hunyuan_v1_dense": {"head_dim": 8},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**EXPERTS, "head_dim": 8},
}
SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
WINDOWS: dict[str, dict[str, Any]] = {
    **{name: {"head_dim": 8, "sliding_window": 4} for name in ("cohere2", "ministral", "mistral")},
    **{name: {"sliding_window": 4} for name in ("olmo3", "phi3", "starcoder2")},
    "exaone4": {"head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2},
    "gemma3_text": {
        "head_dim": 8,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "mixtral": {**EXPERTS, "sliding_window": 4},
    "qwen2": SLIDING,
    "qwen3": {**SLIDING, "head_dim": 8},
    "qwen3_moe": {**SLIDING, **EXPERTS, "head_dim": 8},
}


def made(kind: str, **own: Any) -> nn.Module:  # Any: settings of a transformers configuration
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **{**SIZES, **own})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
        value.attach(module)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.15)
    return module


def sample(prompt: list[int], length: int, rng: np.random.Generator) -> Sample:
    return Sample(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(length, np.bool_),
        logprobs=np.zeros(length, np.float32),
        weight_version=0,
        prompt=Prompt(0, np.array(prompt), ""),
        response_ids=rng.integers(3, 60, length),
    )


def rows(
    prompts: tuple[int, ...] = (6, 3, 9), lengths: tuple[int, ...] = (5, 12, 2, 8, 1, 7)
) -> list[Sample]:
    """Prompts of these lengths, taken in turn."""
    rng = np.random.default_rng(2)
    texts = [rng.integers(3, 60, n).tolist() for n in prompts]
    return [sample(texts[i % len(texts)], n, rng) for i, n in enumerate(lengths)]


def said(
    module: nn.Module, batch: list[Sample], packed: bool, sampling: Sampling | None = None
) -> PolicyOutputs:
    width = max(len(row.response_ids) for row in batch)
    inputs = outputs.collate(batch, width, 0)
    return outputs.policy_outputs(module, inputs, ALL, sampling or Sampling(), {2}, packed)


def alone(module: nn.Module, batch: list[Sample], sampling: Sampling | None = None) -> PolicyOutputs:
    """Each row in a pass of its own, padded afterwards."""
    width = max(len(row.response_ids) for row in batch)
    found = [said(module, [row], packed=False, sampling=sampling) for row in batch]

    def stacked(name: str) -> Tensor:
        columns = [getattr(output, name) for output in found]
        return torch.cat([nn.functional.pad(one, (0, width - one.shape[1])) for one in columns])

    return PolicyOutputs(stacked("logprobs_BT"), stacked("entropy_BT"), stacked("values_BT"))


def total(found: PolicyOutputs) -> Tensor:
    assert found.entropy_BT is not None
    assert found.values_BT is not None
    weights_BT = torch.linspace(-1.0, 1.5, found.logprobs_BT.numel()).view_as(found.logprobs_BT)
    return ((found.logprobs_BT + 0.3 * found.entropy_BT + found.values_BT) * weights_BT).sum()


def gradients(module: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def expect_same(module: nn.Module, batch: list[Sample], sampling: Sampling | None = None) -> None:
    """Outputs to 1e-5, the whole gradient to 3e-6 of its norm."""
    packed, single = said(module, batch, packed=True, sampling=sampling), alone(module, batch, sampling)
    for name in ("logprobs_BT", "entropy_BT", "values_BT"):
        torch.testing.assert_close(getattr(packed, name), getattr(single, name), rtol=0, atol=1e-5)
    ours, theirs = gradients(module, total(packed)), gradients(module, total(single))
    assert ours.keys() == theirs.keys()
    gap = sum(float((ours[name] - theirs[name]).double().square().sum()) for name in ours)
    size = sum(float(gradient.double().square().sum()) for gradient in theirs.values())
    assert (gap / size) ** 0.5 < 3e-6


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every packed call of attention from now on."""
    seen: list[int] = []
    real = attention.attend

    def counted(queries: Tensor, *rest: Any) -> Tensor:
        seen.append(len(queries))
        return real(queries, *rest)

    monkeypatch.setattr(attention, "attend", counted)
    return seen


@pytest.mark.parametrize("kind", sorted(packing.KNOWN))
def test_packed_rows_give_what_each_row_gives_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = made(kind, **OWN.get(kind, {}))
    assert packing.prepare(module, "always")
    monkeypatch.setattr("rlinf_model_hf_lm.forward.blocks_may_be_read", lambda _module: False)
    seen = calls(monkeypatch)
    expect_same(module, rows())
    assert seen == [18 + 4 + 11 + 1 + 7 + 0 + 6] * 3  # three prompts, six responses; in three layers


@pytest.mark.parametrize("kind", sorted(packing.WINDOWED))
def test_sliding_windows_end_in_packed_rows_where_they_end_alone(kind: str) -> None:
    module = made(kind, **WINDOWS[kind])
    assert packing.prepare(module, "always")
    batch = rows()
    expect_same(module, batch)
    windowed = said(module, batch, packed=True).logprobs_BT
    config = module.config
    config.sliding_window = 1000
    for part in module.modules():
        if isinstance(getattr(part, "sliding_window", None), int):
            part.sliding_window = 1000
    wide = said(module, batch, packed=True).logprobs_BT
    assert float((windowed - wide).detach().abs().max()) > 1e-4, "the window shows in rows of this length"


@pytest.mark.parametrize("waste", [0, 128**2])
@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize(
    ("prompts", "lengths"),
    [
        ((40, 7), (90, 3, 200, 31, 64, 1, 33, 64)),  # long responses: prompts are queries again
        ((150,), (9, 3, 1, 40, 40, 2)),  # one long prompt, short responses
        ((5, 6, 7, 8, 9, 10), (1, 1, 1, 1, 1, 60)),  # responses of one token
        ((20,) * 6, (30, 30, 30, 100, 30, 30)),  # no prompt is shared
    ],
)
def test_rows_of_very_unlike_lengths(
    prompts: tuple[int, ...],
    lengths: tuple[int, ...],
    window: int | None,
    waste: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "WASTE", waste)
    module = made("mistral", head_dim=8, sliding_window=window)
    assert packing.prepare(module, "always")
    expect_same(module, rows(prompts, lengths))


def test_other_heads_and_forbidden_ends_read_packed_rows_too() -> None:
    module = made("cohere")  # scales its logits
    assert packing.prepare(module, "always")
    expect_same(module, rows(), Sampling(temperature=0.7, min_new_tokens=3))


def test_blocks_that_are_computed_again_in_the_backward_pass_keep_their_rows() -> None:
    module = made("llama")
    assert packing.prepare(module, "always")
    for block in module.model.layers:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    expect_same(module, rows())


def test_adapters_train_on_packed_rows() -> None:
    from peft import LoraConfig, get_peft_model

    module = made("qwen3", head_dim=8)
    assert packing.prepare(module, "always")
    adapted = get_peft_model(
        module, LoraConfig(r=4, target_modules="all-linear", exclude_modules="value_head")
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    expect_same(adapted, rows())


def test_rows_of_one_length_and_unlike_prompts_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = made("llama")
    assert packing.prepare(module, "always")
    seen = calls(monkeypatch)
    said(module, rows((5, 5, 5, 5), (8, 8, 8, 8)), packed=True)
    assert seen == []


def test_an_architecture_that_is_not_known_is_padded_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    # its layers take attention from a table of their own, so that rows would see each other unnoticed
    module = made("nemotron", head_dim=8)
    with caplog.at_level(logging.WARNING):
        assert not packing.prepare(module, "auto")
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("hf_lm: rows are padded in training: nemotron is not known to take packed rows")
    expect_same(module, rows())
    with pytest.raises(ModelError, match=r"model\.packing is 'always', but nemotron is not known"):
        packing.prepare(module, "always")


def test_what_else_keeps_a_model_from_packed_rows() -> None:
    windowed = made("qwen2_moe", **OWN["qwen2_moe"], **SLIDING)
    assert "with sliding windows" in str(packing.obstacle(windowed))
    eager = made("llama")
    eager.config._attn_implementation = "eager"
    assert "not 'eager'" in str(packing.obstacle(eager))
    assert not packing.prepare(made("llama"), "never")


def test_the_page_names_the_architectures_that_are_tested_here() -> None:
    page = (Path(__file__).parents[4] / "docs" / "packing.md").read_text()
    named = page.partition("tested one by one:")[2].partition(". That")[0]
    assert set(re.findall(r"`(\w+)`", named)) == packing.KNOWN


def test_the_model_says_whether_it_leaves_padding_out_and_what_rows_cost() -> None:
    model = HFLM(HFLMConfig(preset="tiny-qwen3"))
    module = model.module(0)
    assert model.padding_free
    assert model.row_cost(768) == 2 * 768  # 6 * 128 tokens: attention costs as much as the rest
    assert module.config._attn_implementation == attention.NAME
    padded = HFLM(HFLMConfig(preset="tiny-qwen3", packing="never"))
    padded.module(0)
    assert not padded.padding_free


def test_what_packed_attention_cannot_do_is_refused() -> None:
    states = torch.zeros(1, 2, 4, 8)
    batch = outputs.collate(rows((4,), (9, 1, 1)), None, 0)
    mask_BT = torch.arange(9) < batch["response_lengths"][:, None]
    found = layout.layout(batch, mask_BT)
    with pytest.raises(ModelError, match="have no softcap, which Linear asks for"):
        attention.implementation(
            nn.Linear(1, 1), states, states, states, None, packed_rows=found, softcap=30.0
        )
