"""Runs the network in its two parts: the prefix of pictures and prompt once, the action expert for each step.

The expert attends to the keys and values of the prefix, layer by layer: to those, the state token to itself,
and the action tokens to the state and each other. In pi0.5 the state is part of the prompt.

Axes: M decisions, L prefix tokens, C actions of a chunk, A action dimensions, S state size, E expert's hidden
size, H heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class _Written:
    """Keeps the keys and values of each layer. What a block recomputes in backward is not kept again."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Called by each layer's attention. Any: what transformers says beside."""
        self.layers.setdefault(layer, (keys, values))
        return keys, values


class _Read:
    """Puts the prefix before the keys and values of each layer."""

    def __init__(self, layers: dict[int, tuple[Tensor, Tensor]]) -> None:
        self._layers = layers

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Called by each layer's attention. Any: what transformers says beside."""
        before_keys, before_values = self._layers[layer]
        return torch.cat([before_keys, keys], 2), torch.cat([before_values, values], 2)


@dataclass(frozen=True)
class Prefix:
    """Pictures and prompt of M decisions, as the expert sees them."""

    layers: dict[int, tuple[Tensor, Tensor]]  # [M, H, L, D]
    valid_ML: Tensor  # bool; False where the prompt is padded
    mean_ME: Tensor | None = None  # of what the language model makes of it all (pi0.5)

    def repeated(self, times: int) -> Prefix:
        """Each decision `times` times, one beside the other."""
        if times == 1:
            return self

        def repeat(tensor: Tensor) -> Tensor:
            return tensor.repeat_interleave(times, 0)

        layers = {layer: (repeat(keys), repeat(values)) for layer, (keys, values) in self.layers.items()}
        mean_ME = None if self.mean_ME is None else repeat(self.mean_ME)
        return Prefix(layers, repeat(self.valid_ML), mean_ME)


def prefix(base: Any, tokens_ML: Tensor, valid_ML: Tensor, pictures: Tensor | None) -> Prefix:
    """Read prompts, whose first tokens stand for the pictures `[M, cameras, 3, height, width]`, if any."""
    if pictures is None:
        embedded_MLE = base.model.vlm.get_input_embeddings()(tokens_ML)
    else:
        shown = torch.ones(pictures.shape[:2], dtype=torch.bool, device=pictures.device)
        embedded_MLE = base.model.embed_prefix(tokens_ML, pictures.to(_dtype(base)), shown)
    rows, length = tokens_ML.shape
    written = _Written()
    found = base.model.vlm.language_model(
        inputs_embeds=embedded_MLE,
        attention_mask=valid_ML[:, None, None].expand(rows, 1, length, length),
        position_ids=(valid_ML.long().cumsum(-1) - 1).clamp(min=0),
        cache=written,
        use_cache=False,
    )
    if not is_five(base):
        return Prefix(written.layers, valid_ML)
    weights_ML1 = (valid_ML / valid_ML.sum(-1, keepdim=True))[..., None]
    return Prefix(written.layers, valid_ML, (found.last_hidden_state.float() * weights_ML1).sum(1))


def is_five(base: Any) -> bool:
    """Whether it is the network of pi0.5."""
    return hasattr(base, "time_mlp_in")


def actions(
    base: Any, before: Prefix, state_MS: Tensor, noisy_MCA: Tensor, time_M: Tensor
) -> tuple[Tensor, Tensor]:
    """`[M, C, E]` hidden states of the actions, and `[M, E]` the view of the observation."""
    if before.mean_ME is None:
        hidden_MTE = _expert(base, before, state_MS, noisy_MCA, time_M)
        return hidden_MTE[:, 1:], hidden_MTE[:, 0]
    kind = _dtype(base)
    condition_ME = base.condition(time_M)
    rows, count = noisy_MCA.shape[:2]
    everything = torch.ones(rows, count, count, dtype=torch.bool, device=noisy_MCA.device)
    hidden_MCE = _attending(base, before, base.embed(noisy_MCA.to(kind)), everything, condition=condition_ME)
    return base.model.dit.norm(hidden_MCE, condition_ME), before.mean_ME


def view(base: Any, before: Prefix, state_MS: Tensor) -> Tensor:
    """`[M, E]` of the observation alone."""
    return _expert(base, before, state_MS)[:, 0] if before.mean_ME is None else before.mean_ME


def _expert(
    base: Any, before: Prefix, state_MS: Tensor, noisy_MCA: Tensor | None = None, time_M: Tensor | None = None
) -> Tensor:
    """`[M, 1 + C, E]` hidden states of the state token and the actions, or of the first alone (pi0)."""
    embed, kind = base.embed_action_time, _dtype(base)
    if noisy_MCA is None or time_M is None:
        tokens_MTE = embed.state_proj(state_MS.to(kind))[:, None]
    else:
        tokens_MTE = embed(state_MS.to(kind), noisy_MCA.to(kind), time_M)
    rows, count = tokens_MTE.shape[:2]
    itself = torch.ones(count, count, dtype=torch.bool, device=state_MS.device)
    itself[0, 1:] = False
    return _attending(base, before, tokens_MTE, itself.expand(rows, count, count))


def _attending(base: Any, before: Prefix, tokens_MTE: Tensor, itself_MTT: Tensor, **told: Any) -> Tensor:
    """What the expert makes of tokens that see the prefix and, where `itself_MTT` says so, one another. Any:
    what its layers are told."""
    rows, count = tokens_MTE.shape[:2]
    mask = torch.cat([before.valid_ML[:, None].expand(rows, count, -1), itself_MTT], dim=-1)
    first_M1 = before.valid_ML.long().sum(-1, keepdim=True)
    found: Tensor = base.model.dit(
        inputs_embeds=tokens_MTE,
        attention_mask=mask[:, None],
        position_ids=first_M1 + torch.arange(count, device=tokens_MTE.device),
        cache=_Read(before.layers),
        use_cache=False,
        **told,
    ).last_hidden_state
    return found


def velocity(base: Any, hidden_MCE: Tensor) -> Tensor:
    """Float32 `[M, C, A]` of the actions' hidden states."""
    found: Tensor = base.action_out_proj(hidden_MCE)
    return found.float()


def _dtype(base: Any) -> torch.dtype:
    found: torch.dtype = base.action_out_proj.weight.dtype
    return found
