"""Options of the Gymnasium simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_core.errors import ConfigError

OURS = ("render_mode", "max_episode_steps", "width", "height")  # arguments that this plugin gives


@dataclass(frozen=True)
class GymnasiumConfig:
    """Which environment, and what of it the policy is shown."""

    id: str  # as registered with Gymnasium, such as Reacher-v5
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: arguments of the environment itself
    imports: tuple[str, ...] = ()  # modules that register more environments, such as gymnasium_robotics
    max_episode_steps: int = 0  # 0 = as registered
    success_return: float | None = None  # episodes that end with this return or more have succeeded
    state: bool = True  # show the environment's own observation
    images: bool = False  # show a picture, `images/main`
    image_size: int = 64  # height and width of pictures that are shown to the policy
    render_size: int = 256  # height and width of pictures for people, such as in videos
    shadows: bool = False  # with shadows, reflections and smooth edges; many times slower without a GPU

    def __post_init__(self) -> None:
        if not self.id:
            raise ConfigError(
                "simulator.id (gymnasium): it is empty; name an environment, such as Reacher-v5"
            )
        if self.max_episode_steps < 0:
            raise ConfigError(
                f"simulator.max_episode_steps (gymnasium): {self.max_episode_steps}: must be 0 (as "
                "registered) or more"
            )
        if not (self.state or self.images):
            raise ConfigError(
                "simulator.state (gymnasium): false without images: the policy would see nothing"
            )
        for name in ("image_size", "render_size"):
            size = getattr(self, name)
            if not 8 <= size <= 1024:
                raise ConfigError(f"simulator.{name} (gymnasium): {size}: must lie between 8 and 1024")
        for name in OURS:
            if name in self.kwargs:
                raise ConfigError(
                    f"simulator.kwargs.{name} (gymnasium): set by this plugin; use simulator.images, "
                    "simulator.image_size and simulator.max_episode_steps"
                )
