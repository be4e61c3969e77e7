"""Registers the model `mlp_policy`."""

from __future__ import annotations

from rlinf_core.api import ModelCapabilities
from rlinf_core.plugins import ModelSpec, hookimpl
from rlinf_model_mlp_policy.config import MLPPolicyConfig


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """The one model of this distribution."""
    return [
        ModelSpec(
            name="mlp_policy",
            summary="Perceptron policy for states and pictures, Gaussian or categorical, with a value head",
            config=MLPPolicyConfig,
            target="rlinf_model_mlp_policy.model:MLPPolicy",
            provides=ModelCapabilities(
                modality="embodied",
                value_head=True,
                logprob_levels=frozenset({"chunk", "action", "token"}),
                discrete_actions=True,
                continuous_actions=True,
                demonstrations=True,
            ),
            suggests={"optimizer": {"lr": 3e-3}},
        )
    ]
