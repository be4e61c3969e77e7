"""Settings of the `openvla` model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError

PRESETS = ("tiny",)


@dataclass(frozen=True)
class OpenVLAConfig:
    """Which weights, what they see, and how their tokens become a simulator's actions."""

    path: str = ""  # folder in the layout of openvla-7b
    preset: str = ""  # a small model with random weights, instead of `path`: tiny
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the parameters
    act_dtype: Literal["auto", "bfloat16"] = "auto"  # of computing actions; auto = as `dtype`
    unnorm_key: str = ""  # data set whose statistics scale actions; "" = the only one
    action_dims: tuple[int, ...] = ()  # of the model's, those that the simulator takes; () = all
    gripper: Literal["raw", "sign", "negative_sign"] = (
        "raw"  # the last dimension g: as it is, sign(2g - 1) (WidowX), or -sign(2g - 1) (LIBERO)
    )
    chunk: int = 1  # actions a decision, written one after another
    camera: str = ""  # whose pictures are seen; "" = the only one
    crop_area: float = 1.0  # share of a picture, about its centre, that is seen; 0.9 after random crops
    instruction: str = ""  # where the simulator gives none
    temperature: float = 1.0  # logits of action tokens are divided by it, in acting and in training
    value_units: int = 512  # hidden units of the value head

    def __post_init__(self) -> None:
        if bool(self.preset) == bool(self.path):
            raise ConfigError(
                f"model.path and model.preset (openvla): {self.path!r} and {self.preset!r}: set one of them; "
                f"presets: {', '.join(PRESETS)}"
            )
        choices = (
            ("preset", self.preset, ("", *PRESETS)),
            ("dtype", self.dtype, ("float32", "bfloat16")),
            ("act_dtype", self.act_dtype, ("auto", "bfloat16")),
            ("gripper", self.gripper, ("raw", "sign", "negative_sign")),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise ConfigError(
                    f"model.{name} (openvla): {value!r}: use {' or '.join(filter(None, allowed))}"
                )
        for name, count in (("chunk", self.chunk), ("value_units", self.value_units)):
            if count < 1:
                raise ConfigError(f"model.{name} (openvla): {count}: must be 1 or more")
        if not 0.0 < self.crop_area <= 1.0:
            raise ConfigError(f"model.crop_area (openvla): {self.crop_area}: must lie in (0, 1]")
        if not self.temperature > 0.0:
            raise ConfigError(f"model.temperature (openvla): {self.temperature}: must be more than 0")
        if any(index < 0 for index in self.action_dims):
            raise ConfigError(f"model.action_dims (openvla): {list(self.action_dims)}: counted from 0")
