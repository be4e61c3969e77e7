"""The network of pi0.5 over the blocks of pi0: time enters by the expert's norms, the state by the prompt.

A norm that is told the time gives a scale and a shift for what it normalises, and a gate for what the
residual stream takes in behind it (Black et al. 2025; sizes and names are those of OpenPI's weights).

Axes: M decisions, C actions of a chunk, A action dimensions, E expert's hidden size, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PI0ForConditionalGeneration
from transformers.models.gemma.modeling_gemma import GemmaDecoderLayer

_NOT_OF_FIVE = ("state_proj", "action_time_mlp_in", "action_time_mlp_out")


class Pi05Network(PI0ForConditionalGeneration):  # type: ignore[misc]  # transformers are not typed
    """The parts have the places that they have in pi0."""

    def __init__(self, config: Any) -> None:  # Any: a transformers configuration
        super().__init__(config)
        size, expert = config.dit_config.hidden_size, self.model.dit
        for name in _NOT_OF_FIVE:
            delattr(self.embed_action_time, name)
        self.time_mlp_in = nn.Linear(size, size)
        self.time_mlp_out = nn.Linear(size, size)
        expert.layers = nn.ModuleList(
            AdaptiveLayer(expert.config, index) for index in range(len(expert.layers))
        )
        expert.norm = FinalNorm(size, expert.config.rms_norm_eps)

    def embed(self, noisy_MCA: Tensor) -> Tensor:
        """`[M, C, E]`."""
        found: Tensor = self.embed_action_time.action_in_proj(noisy_MCA)
        return found

    def condition(self, time_M: Tensor) -> Tensor:
        """`[M, E]` that norms are told of the time."""
        waves_ME = self.embed_action_time.sinusoid_embeds(time_M).to(self.time_mlp_in.weight.dtype)
        return functional.silu(self.time_mlp_out(functional.silu(self.time_mlp_in(waves_ME))))


class AdaptiveNorm(nn.Module):
    """Root mean square 1, then a scale and a shift by the condition, and a gate beside."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(size, 3 * size)

    def forward(self, hidden_MTE: Tensor, condition_ME: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised `[M, T, E]` and the gate `[M, 1, E]`; computed in float32."""
        modulation = self.dense(condition_ME.to(self.dense.weight.dtype))[:, None].float()
        scale_M1E, shift_M1E, gate_M1E = modulation.chunk(3, dim=-1)
        wide_MTE = hidden_MTE.float()
        normed_MTE = wide_MTE * torch.rsqrt(wide_MTE.square().mean(-1, keepdim=True) + self.eps)
        found = normed_MTE * (1.0 + scale_M1E) + shift_M1E
        return found.to(hidden_MTE.dtype), gate_M1E.to(hidden_MTE.dtype)


class FinalNorm(AdaptiveNorm):
    """The expert calls it without a condition, which it has none of, and gets back what it gave."""

    def forward(self, hidden_MTE: Tensor, condition_ME: Tensor | None = None) -> Any:
        """`[M, T, E]`."""
        return hidden_MTE if condition_ME is None else super().forward(hidden_MTE, condition_ME)[0]


class AdaptiveLayer(GemmaDecoderLayer):  # type: ignore[misc]  # transformers are not typed
    """Gemma's layer between adaptive norms. Any: transformers has other norms there."""

    def __init__(self, config: Any, index: int) -> None:  # Any: a transformers configuration
        super().__init__(config, index)
        self.input_layernorm: Any = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm: Any = AdaptiveNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states: Tensor, condition: Tensor, **attention: Any) -> Tensor:
        """`[M, T, E]`. Any: what transformers tells attention."""
        normed, gate = self.input_layernorm(hidden_states, condition)
        attended, _ = self.self_attn(hidden_states=normed, **attention)
        hidden_states = hidden_states + gate * attended
        normed, gate = self.post_attention_layernorm(hidden_states, condition)
        taken: Tensor = hidden_states + gate * self.mlp(normed)
        return taken


def open_gates(network: Pi05Network) -> None:
    """Let layers of random weights have a say: as they are drawn, their gates are nearly closed."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, AdaptiveNorm):
                module.dense.bias.chunk(3)[2].fill_(1.0)
