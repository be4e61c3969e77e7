"""Registers the model `pi0`."""

from __future__ import annotations

from rlinf_core.api import ModelCapabilities
from rlinf_core.plugins import ModelSpec, hookimpl
from rlinf_model_pi0.config import Pi0Config


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """The one model of this distribution."""
    return [
        ModelSpec(
            name="pi0",
            summary="pi0 and pi0.5: a flow of actions over PaliGemma, sampled so that RL can train it",
            config=Pi0Config,
            target="rlinf_model_pi0.model:Pi0",
            provides=ModelCapabilities(
                modality="embodied",
                observations=frozenset({"images"}),
                value_head=True,
                lora=True,
                logprob_levels=frozenset({"chunk", "action", "token"}),
                continuous_actions=True,
                demonstrations=True,
            ),
            suggests={"optimizer": {"lr": 5e-6}},
        )
    ]
