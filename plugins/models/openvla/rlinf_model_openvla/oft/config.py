"""Settings of the `openvla_oft` model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rlinf_core.errors import ConfigError
from rlinf_model_openvla.config import PrismaticConfig

MOST_CAMERAS = 3


@dataclass(frozen=True)
class TinySizes:
    """Sizes of the preset `tiny`, whose architecture is that of the published models."""

    image_size: int = 64  # side of what the encoders are shown
    patch_size: int = 16  # side of a patch; divides `image_size`
    vision_width: int = 32  # of either encoder
    vision_depth: int = 2  # blocks of either encoder; features do not pass the last one
    vision_heads: int = 2
    width: int = 64  # of the language model
    depth: int = 3  # its blocks; at least 2, for the first one tells no slot from another
    heads: int = 2
    mlp_width: int = 128  # hidden units of its blocks
    bins: int = 32  # of a dimension of an action, each a token
    initializer_range: float = 0.2  # standard deviation of the language model's first weights
    state_bound: float = 1.0  # states are cut to -bound..bound, which the model is shown as -1..1

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(
                    f"model.sizes.{name} (openvla_oft): {getattr(self, name)}: must be {least} or more"
                )
        for name, part in (
            ("image_size", "patch_size"),
            ("vision_width", "vision_heads"),
            ("width", "heads"),
        ):
            whole, divisor = getattr(self, name), getattr(self, part)
            if whole % divisor:
                raise ConfigError(
                    f"model.sizes.{name} (openvla_oft): {whole} is no multiple of {part}, which is {divisor}"
                )
        if (self.width // self.heads) % 2:
            raise ConfigError(
                f"model.sizes.heads (openvla_oft): {self.heads}: width / heads must be even, for rotations"
            )
        for name in ("initializer_range", "state_bound"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(
                    f"model.sizes.{name} (openvla_oft): {getattr(self, name)}: must be more than 0"
                )


_LEAST = {
    "image_size": 1,
    "patch_size": 1,
    "vision_width": 1,
    "vision_depth": 2,
    "vision_heads": 1,
    "width": 2,
    "depth": 2,
    "heads": 1,
    "mlp_width": 1,
    "bins": 2,
}


@dataclass(frozen=True)
class OpenVLAOFTConfig(PrismaticConfig):
    """Which weights, what they see, and how a chunk of actions is told from it."""

    plugin: ClassVar[str] = "openvla_oft"
    choices: ClassVar[dict[str, tuple[Any, ...]]] = {
        **PrismaticConfig.choices,
        "head": ("auto", "tokens", "continuous"),
        "proprio": ("auto", "none", "state"),
    }

    chunk: int = 8  # actions a decision, all told in one pass
    head: Literal["auto", "tokens", "continuous"] = (
        "auto"  # what tells actions: bins as tokens, or numbers; auto = what the checkpoint has, else tokens
    )
    noise: float = 0.05  # head continuous: scale of the Laplace noise about its numbers, of -1..1
    cameras: tuple[str, ...] = ()  # whose pictures are seen, in this order; () = the only one
    proprio: Literal["auto", "none", "state"] = (
        "auto"  # whether the simulator's state is seen; auto = as the checkpoint has it, else not
    )
    sizes: TinySizes = field(default_factory=TinySizes)  # of the preset

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise > 0.0:
            raise self.refused("noise", "must be more than 0; acting greedily leaves it out")
        if len(self.cameras) > MOST_CAMERAS or len(set(self.cameras)) < len(self.cameras):
            raise self.refused("cameras", f"name up to {MOST_CAMERAS}, each once")
        if self.path and self.sizes != TinySizes():
            raise self.refused("sizes", "are those of the preset; a checkpoint brings its own")
