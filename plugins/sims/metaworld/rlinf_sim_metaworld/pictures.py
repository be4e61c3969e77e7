"""Pictures of arms by Meta-World's cameras."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.media.offscreen import Camera
from rlinf_sim_metaworld.config import UPSIDE_DOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlinf_sim_metaworld.arm import Arm


class Pictures:
    """Draws the arms of one simulator. Arms before the same task have the same meshes and textures, so one
    graphics context of a task and a size does for all, from the first such picture until `close`."""

    def __init__(self, shadows: bool) -> None:
        self._shadows = shadows
        self._contexts: dict[tuple[str, int], Camera] = {}

    def draw(self, arm: Arm, camera: str, size: int) -> NDArray[np.uint8]:
        """`[size, size, 3]`, upright, as the arm is now."""
        drawn = self._contexts.get((arm.task, size))
        if drawn is None:
            drawn = Camera(arm.model, size, {}, shadows=self._shadows, simulator="metaworld")
            self._contexts[arm.task, size] = drawn
        frame = drawn.frame(arm.model, arm.data, fixed=arm.model.camera(camera).id)
        return frame[::-1, ::-1] if camera in UPSIDE_DOWN else frame

    def close(self) -> None:
        """Free the graphics contexts."""
        for drawn in self._contexts.values():
            drawn.close()
        self._contexts = {}
