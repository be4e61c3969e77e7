"""Names of weights as trainers give them, and as engines that build the model themselves know them.

Trainers with adapters (Hu et al. 2021) name them as peft does: `base_model.model.X.base_layer.weight` for the
weight of `X`, `base_model.model.X.lora_A.default.weight` for one of its adapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlinf_core.api import Model

ADAPTED = "base_model.model."
ADAPTER_PARTS = (".lora_A.", ".lora_B.")


def sent_name(name: str, model: Model) -> str | None:
    """In the model's own format; `X.lora_A.weight` for adapters; None for what is not in it."""
    plain = name.removeprefix(ADAPTED).replace(".base_layer.", ".")
    for part in ADAPTER_PARTS:
        plain = plain.replace(f"{part}default.", part)
    return plain if is_adapter(plain) else model.exported_name(plain)


def is_adapter(name: str) -> bool:
    """Whether it is a weight of an adapter."""
    return any(part in name for part in ADAPTER_PARTS)
