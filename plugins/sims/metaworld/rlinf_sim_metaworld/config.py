"""Options of the Meta-World simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError

REWARDS = ("shifted", "dense", "sparse")
CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
UPSIDE_DOWN = CAMERAS[:4]  # Meta-World has them roll over


@dataclass(frozen=True)
class MetaWorldConfig:
    """Which task, what its steps pay and what of it the policy is shown."""

    task: str = "reach-v3"  # one of the fifty, or MT10 or MT50: the seed of an episode chooses
    max_episode_steps: int = 150  # Meta-World's own limit is 500
    reward: Literal["shifted", "dense", "sparse"] = (
        "shifted"  # dense = Meta-World's 0..10; shifted = dense / 10 - 1, at most 0; sparse = 1 for success
    )
    task_id: bool = False  # show which task it is, one-hot behind the state
    instruction: bool = False  # say which task it is, in words
    state: bool = True  # show the 39 numbers of Meta-World
    images: bool = False  # show pictures, `images/CAMERA`
    cameras: tuple[str, ...] = ("corner4",)  # of those pictures; the first is that of videos
    image_size: int = 64  # height and width of pictures that are shown to the policy
    render_size: int = 256  # height and width of pictures for people, such as in videos
    shadows: bool = False  # with shadows, reflections and smooth edges; slower without a GPU

    def __post_init__(self) -> None:
        if self.max_episode_steps < 1:
            raise ConfigError(
                f"simulator.max_episode_steps (metaworld): {self.max_episode_steps}: must be 1 or more"
            )
        if self.reward not in REWARDS:
            raise ConfigError(f"simulator.reward (metaworld): {self.reward!r}: use {', '.join(REWARDS)}")
        if not (self.state or self.images):
            raise ConfigError(
                "simulator.state (metaworld): false without images: the policy would see nothing"
            )
        if self.task_id and not self.state:
            raise ConfigError(
                "simulator.task_id (metaworld): it stands behind the state, which state=false hides"
            )
        self._check_pictures()

    def _check_pictures(self) -> None:
        for name in ("image_size", "render_size"):
            size = getattr(self, name)
            if not 8 <= size <= 1024:
                raise ConfigError(f"simulator.{name} (metaworld): {size}: must lie between 8 and 1024")
        unknown = [camera for camera in self.cameras if camera not in CAMERAS]
        if unknown or not self.cameras:
            raise ConfigError(
                f"simulator.cameras (metaworld): {', '.join(unknown) or 'none named'}: use some of "
                f"{', '.join(CAMERAS)}"
            )
