"""Options of the perceptron policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class MLPPolicyConfig:
    """A small policy that learns simple control tasks on a CPU."""

    hidden: tuple[int, ...] = (64, 64)  # units of each hidden layer
    activation: Literal["tanh", "relu", "silu"] = "tanh"  # between layers
    init_log_std: float = -0.5  # of continuous actions, in units of half the action range
    std: Literal["free", "state"] = "free"  # of continuous actions: the same everywhere, or told by the state
    squash: bool = False  # continuous actions pass a tanh, so that none lies outside the action range
    chunk: int = 1  # continuous actions per decision
    value_head: Literal["separate", "shared", "none"] = (
        "separate"  # where a critic asks for values: hidden layers of its own, or the policy's
    )
    image_channels: tuple[int, ...] = (16, 32, 32)  # of the three convolutions over pictures
    image_features: int = 128  # of each camera, beside the state
    path: str = ""  # folder of exported weights to start from; "" = a new policy

    def __post_init__(self) -> None:
        if any(units < 1 for units in self.hidden):
            raise ConfigError(
                f"model.hidden (mlp_policy): {list(self.hidden)}: every layer needs 1 unit or more"
            )
        if self.activation not in ("tanh", "relu", "silu"):
            raise ConfigError(f"model.activation (mlp_policy): {self.activation!r}: use tanh, relu or silu")
        if self.std not in ("free", "state"):
            raise ConfigError(f"model.std (mlp_policy): {self.std!r}: use free or state")
        if self.chunk < 1:
            raise ConfigError(f"model.chunk (mlp_policy): {self.chunk}: must be 1 or more")
        if self.value_head not in ("separate", "shared", "none"):
            raise ConfigError(
                f"model.value_head (mlp_policy): {self.value_head!r}: use separate, shared or none"
            )
        if len(self.image_channels) != 3 or min(self.image_channels) < 1:
            raise ConfigError(
                f"model.image_channels (mlp_policy): {list(self.image_channels)}: three numbers of 1 or more"
            )
        if self.image_features < 1:
            raise ConfigError(f"model.image_features (mlp_policy): {self.image_features}: must be 1 or more")
        if not -10.0 <= self.init_log_std <= 2.0:
            raise ConfigError(
                f"model.init_log_std (mlp_policy): {self.init_log_std}: must lie between -10 and 2"
            )
