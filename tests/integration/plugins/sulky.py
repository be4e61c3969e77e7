"""A test plugin: a perceptron that refuses to act after a while."""

from __future__ import annotations

from typing import Any

from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.model import MLPPolicy

from rlinf_core.api import ActionSample, ModelCapabilities
from rlinf_core.plugins import ModelSpec, hookimpl


class Sulky(MLPPolicy):
    """Acts five times."""

    left = 5

    def act(self, *args: Any, **kwargs: Any) -> ActionSample:
        """Raise in the end."""
        self.left -= 1
        if self.left < 0:
            raise ValueError("not in the mood")
        return super().act(*args, **kwargs)


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """One model."""
    return [
        ModelSpec(
            name="sulky",
            summary="Refuses to act after a while",
            config=MLPPolicyConfig,
            target="sulky:Sulky",
            provides=ModelCapabilities(modality="embodied", continuous_actions=True),
        )
    ]
