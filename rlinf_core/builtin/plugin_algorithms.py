"""Registers the algorithms that ship with the core."""

from __future__ import annotations

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.builtin.algorithms.config import SFTConfig
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import AlgorithmSpec


def sft_needs(config: SFTConfig) -> AlgorithmNeeds:
    """Demonstrations."""
    return AlgorithmNeeds(imitates=True)


@hookimpl
def rlinf_register_algorithms() -> list[AlgorithmSpec]:
    """Offer supervised fine-tuning."""
    return [
        AlgorithmSpec(
            name="sft",
            summary="Supervised fine-tuning on demonstrations, without rewards",
            config=SFTConfig,
            target="rlinf_core.builtin.algorithms.sft:SFT",
            needs=sft_needs,
        )
    ]
