"""The value head: a linear layer on the hidden states that log-probabilities come from.

Axes: N response positions, E hidden size.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from rlinf_core.errors import ModelError
from rlinf_model_hf_vlm.architecture import conditional, text_config

NAME = "value_head"


def attach(module: nn.Module) -> None:
    """Add a head that says 0 of every state, float32 whatever the trunk is. Draws no random number."""
    head = skip_init(nn.Linear, text_config(module).hidden_size, 1, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    setattr(module, NAME, head)


def value_head(module: nn.Module) -> nn.Module | None:
    """The head, also below adapters; None if there is none."""
    return cast("nn.Module | None", getattr(conditional(module), NAME, None))


def values(module: nn.Module, hidden_NE: Tensor) -> Tensor:
    """Float32 values `[N]`, also under autocast. The head is called, so that sharding gathers it."""
    head: Any = value_head(module)
    if head is None:
        raise ModelError("hf_vlm: values were asked for before add_value_head()")
    with torch.autocast(hidden_NE.device.type, enabled=False):
        found: Tensor = head(hidden_NE.float())
    return found.squeeze(-1)


def is_head(name: str) -> bool:
    """Whether a weight of this name is the head's."""
    return name.startswith(f"{NAME}.")
