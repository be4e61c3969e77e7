"""Pictures of environments, drawn without a window.

MuJoCo environments are drawn by cameras of this plugin, not by Gymnasium's renderer: that one takes a
graphics context for each environment and forgets which of them is current.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import PluginError
from rlinf_core.media.offscreen import Camera
from rlinf_core.media.resizing import resized
from rlinf_sim_gymnasium.layers import layers
from rlinf_sim_gymnasium.registry import Env

Picture = NDArray[np.uint8]  # [H, W, 3]


class Pictures:
    """Draws the environments of one simulator; a camera of a size exists from the first such picture until
    `close`."""

    def __init__(self, envs: list[Env], shadows: bool) -> None:
        self._envs = envs
        self._shadows = shadows
        self._cameras: dict[int, Camera] = {}  # by the size of their pictures
        self._size = 0  # of the picture that is being drawn
        self._view: Mapping[str, Any] = {}  # Any: fields of MjvCamera
        for env in envs:
            for layer in layers(env):
                if "mujoco_renderer" in vars(layer):
                    self._replace_renderer(layer)

    @property
    def by_mujoco(self) -> bool:
        """Whether MuJoCo draws them."""
        return bool(self._view)

    def draw(self, n: int, size: int) -> Picture:
        """Environment n as it is now, in `size` x `size` pixels."""
        self._size = size
        frame = self._envs[n].render()
        if not isinstance(frame, np.ndarray):
            raise PluginError(f"simulator gymnasium: {self._envs[n]} gives no picture when it is rendered")
        return resized(frame, size)

    def close(self) -> None:
        """Free the graphics contexts; the next picture makes another."""
        for camera in self._cameras.values():
            camera.close()
        self._cameras = {}

    def _replace_renderer(self, layer: Any) -> None:  # Any: a MuJoCo environment
        original = layer.mujoco_renderer
        self._view = {"fixedcamid": original.camera_id, **(original.default_cam_config or {})}
        layer.mujoco_renderer = _Stand(self, original.model, original.data)

    def _draw_mujoco(self, model: Any, data: Any) -> Picture:  # Any: of MuJoCo
        camera = self._cameras.get(self._size)
        if camera is None:
            camera = Camera(model, self._size, self._view, shadows=self._shadows, simulator="gymnasium")
            self._cameras[self._size] = camera
        return camera.frame(model, data)


class _Stand:
    """Stands where a MuJoCo environment has its own renderer."""

    def __init__(self, pictures: Pictures, model: Any, data: Any) -> None:
        self.model, self.data, self._pictures = model, data, pictures

    def render(self, render_mode: str | None) -> Picture:
        """What the environment's `render` returns."""
        return self._pictures._draw_mujoco(self.model, self.data)

    def close(self) -> None:
        """The camera belongs to the simulator."""
