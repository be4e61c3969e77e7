"""What reinforcement learning adds to the network: a value of the observation, and learned noise.

Axes: M decisions, C actions of a chunk, A action dimensions, E hidden size of the expert.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from rlinf_core.errors import ModelError
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.network import is_five

VALUE, NOISE = "value_head", "noise_head"


def base_of(module: nn.Module) -> Any:  # Any: transformers modules are not typed
    """The pi0 network below adapters."""
    base = getattr(module, "get_base_model", None)
    return base() if callable(base) else module


def attach(module: Any, config: Pi0Config, *, valued: bool) -> None:  # Any: see above
    """Add the heads: float32, saying 0 of everything. Draws no random number. Any: see above."""
    size, dimensions = module.config.dit_config.hidden_size, module.config.max_action_dim
    if valued:
        seen = module.config.vlm_config.text_config.hidden_size if is_five(module) else size
        setattr(module, VALUE, _zero_linear(seen, 1))
    if config.noise == "learned":
        setattr(module, NOISE, _zero_linear(size, dimensions))


def values(module: nn.Module, hidden_ME: Tensor) -> Tensor:
    """Float32 `[M]`, also under autocast. Raises `ModelError` without a head."""
    head = getattr(base_of(module), VALUE, None)
    if head is None:
        raise ModelError(
            "pi0: values were asked for, but the module has no value head: call add_value_head() "
            "before module()"
        )
    with torch.autocast(hidden_ME.device.type, enabled=False):
        found: Tensor = head(hidden_ME.float())
    return found.squeeze(-1)


def deviations(module: nn.Module, hidden_MCE: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Float32 `[M, C, A]` standard deviations within the bounds; their geometric mean before training."""
    head: Any = getattr(base_of(module), NOISE)
    low, high = (math.log(bound) for bound in bounds)
    with torch.autocast(hidden_MCE.device.type, enabled=False):
        raw_MCA: Tensor = head(hidden_MCE.float())
    return torch.exp(low + (high - low) * torch.sigmoid(raw_MCA))


def is_head(name: str) -> bool:
    """Whether a weight of this name is a head's."""
    return name.startswith((f"{VALUE}.", f"{NOISE}."))


def _zero_linear(size: int, outputs: int) -> nn.Module:
    head: nn.Module = skip_init(nn.Linear, size, outputs, dtype=torch.float32)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head
