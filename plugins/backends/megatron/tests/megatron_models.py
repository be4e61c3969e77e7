"""Tiny random models of the families that are mapped to Megatron, and what they are trained on.

Axes: B rows, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlinf_core.api import LossTerms, Model, PolicyOutputs, TrainBatch
from rlinf_core.testing.fakes import sample_of
from rlinf_core.types import Sample


def small_model(kind: str, packing: str = "auto") -> Model:
    """A tiny random model of a family."""
    from rlinf_model_hf_lm.config import HFLMConfig
    from rlinf_model_hf_lm.model import HFLM

    preset: Any = {"llama": "tiny-llama", "qwen2": "tiny-qwen2"}.get(kind, "tiny-qwen3")
    config = HFLMConfig(preset=preset, packing=packing)  # type: ignore[arg-type]
    return MixtureModel(config) if kind == "qwen3_moe" else HFLM(config)


def _mixture() -> type[Model]:
    from rlinf_model_hf_lm.model import HFLM
    from rlinf_model_hf_lm.packing import prepare

    class Mixture(HFLM):
        """As the preset, its layers with experts."""

        def module(self, seed: int = 0) -> Any:  # Any: transformers modules are not typed
            from transformers import AutoModelForCausalLM, Qwen3MoeConfig

            torch.manual_seed(seed)
            config = Qwen3MoeConfig(
                vocab_size=128,
                hidden_size=32,
                intermediate_size=64,
                moe_intermediate_size=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                num_experts=4,
                num_experts_per_tok=2,
                norm_topk_prob=True,
            )
            module = AutoModelForCausalLM.from_config(config)
            self._packs = prepare(module, self.config.packing)
            return module

    return Mixture


MixtureModel: Any = _mixture()


def valued_model() -> Model:
    """With a value head, which would say 0 of everything at first."""
    from rlinf_model_hf_lm.config import HFLMConfig
    from rlinf_model_hf_lm.model import HFLM

    class Valued(HFLM):
        """As the preset."""

        def module(self, seed: int = 0) -> Any:  # Any: transformers modules are not typed
            module: Any = super().module(seed)
            torch.manual_seed(seed)
            torch.nn.init.normal_(module.value_head.weight, std=0.1)
            torch.nn.init.constant_(module.value_head.bias, 0.5)
            return module

    model = Valued(HFLMConfig(preset="tiny-qwen2"))
    model.add_value_head()
    return model


def rows() -> list[Sample]:
    """Eight rows of all lengths, the last response one token long."""
    random = np.random.default_rng(0)
    lengths = [*random.integers(1, 12, 7).tolist(), 1]
    prompts = random.integers(2, 9, 8).tolist()
    return [
        sample_of(random.integers(6, 100, prompt), random.integers(6, 100, length), index)
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def batch_of(model: Model, chosen: Sequence[Sample]) -> TrainBatch:
    """Advantages depend on the row and the position alone."""
    width = max(len(row.mask) for row in chosen)
    mask_BT = torch.zeros(len(chosen), width, dtype=torch.bool)
    advantages_BT = torch.zeros(len(chosen), width)
    for i, row in enumerate(chosen):
        length = len(row.mask)
        mask_BT[i, :length] = True
        advantages_BT[i, :length] = torch.linspace(-1, 1, length) + 0.1 * row.group
    return TrainBatch(model.collate(chosen, width), mask_BT, advantages_BT, torch.zeros_like(advantages_BT))


def loss(outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
    """Policy gradient with entropy: both outputs get a gradient."""
    if outputs.entropy_BT is None:
        raise AssertionError("no entropies")
    lost_BT = -outputs.logprobs_BT * batch.advantages_BT - 0.01 * outputs.entropy_BT
    if outputs.values_BT is not None:
        lost_BT = lost_BT + 0.5 * (outputs.values_BT - batch.advantages_BT).square()
    total = lost_BT[batch.mask_BT].sum()
    return LossTerms(total, {"loss": (total.detach(), batch.mask_BT.sum())})
