"""Settings of the `openvla` model, and those that it shares with `openvla_oft`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rlinf_core.errors import ConfigError

PRESETS = ("tiny",)


@dataclass(frozen=True)
class PrismaticConfig:
    """Which weights, what they see, and how what they say becomes a simulator's actions."""

    plugin: ClassVar[str] = ""
    choices: ClassVar[dict[str, tuple[Any, ...]]] = {
        "preset": ("", *PRESETS),
        "dtype": ("float32", "bfloat16"),
        "act_dtype": ("auto", "bfloat16"),
        "gripper": ("raw", "sign", "negative_sign"),
    }

    path: str = ""  # folder in the layout of openvla-7b
    preset: str = ""  # a small model with random weights, instead of `path`: tiny
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the parameters
    act_dtype: Literal["auto", "bfloat16"] = "auto"  # of computing actions; auto = as `dtype`
    unnorm_key: str = ""  # data set whose statistics scale actions; "" = the only one
    action_dims: tuple[int, ...] = ()  # of the model's, those that the simulator takes; () = all
    gripper: Literal["raw", "sign", "negative_sign"] = (
        "raw"  # the last dimension g: as it is, sign(2g - 1) (WidowX), or -sign(2g - 1) (LIBERO)
    )
    crop_area: float = 1.0  # share of a picture, about its centre, that is seen; 0.9 after random crops
    instruction: str = ""  # where the simulator gives none
    temperature: float = 1.0  # logits of action tokens are divided by it, in acting and in training
    value_units: int = 512  # hidden units of the value head
    detach_critic_input: bool = False  # the value head reads the policy's states and does not train them
    chunk: int = 1  # actions a decision

    def __post_init__(self) -> None:
        if bool(self.preset) == bool(self.path):
            raise ConfigError(
                f"model.path and model.preset ({self.plugin}): {self.path!r} and {self.preset!r}: set one of "
                f"them; presets: {', '.join(PRESETS)}"
            )
        if self.preset and self.unnorm_key:
            raise self.refused(
                "unnorm_key", "a preset has no statistics; it acts within the simulator's bounds"
            )
        for name, allowed in self.choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise self.refused(name, f"use {' or '.join(filter(None, allowed))}")
        for name in ("chunk", "value_units"):
            if getattr(self, name) < 1:
                raise self.refused(name, "must be 1 or more")
        if not 0.0 < self.crop_area <= 1.0:
            raise self.refused("crop_area", "must lie in (0, 1]")
        if not self.temperature > 0.0:
            raise self.refused("temperature", "must be more than 0")
        if any(index < 0 for index in self.action_dims):
            raise self.refused("action_dims", "counted from 0")

    def refused(self, name: str, reason: str) -> ConfigError:
        """What to raise for a setting."""
        value = getattr(self, name)
        shown = list(value) if isinstance(value, tuple) else value
        return ConfigError(f"model.{name} ({self.plugin}): {shown!r}: {reason}")


@dataclass(frozen=True)
class OpenVLAConfig(PrismaticConfig):
    """Which weights, what they see, and how their tokens become a simulator's actions."""

    plugin: ClassVar[str] = "openvla"

    chunk: int = 1  # actions a decision, written one after another
    camera: str = ""  # whose pictures are seen; "" = the only one
