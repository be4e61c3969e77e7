"""Pictures of a scene, drawn without a window.

LIBERO's renderer is not used: its shadows and smooth edges take most of the time where the CPU draws,
and it forgets which of several graphics contexts is current. Meshes are what is left to pay for, so those
outside a picture are not drawn; the picture is the same.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError
from rlinf_core.media.offscreen import has_gpu, leave_out_unseen, window
from rlinf_sim_libero.scene import Scene

_log = logging.getLogger(__name__)
_MOST_GEOMS = 2000
_PREFIXES = ("", "robot0_")  # of a camera's name in the model

_TURNS = {"raw": (1, 1), "upright": (-1, 1), "rotated": (-1, -1)}  # steps down and to the right

Picture = NDArray[np.uint8]  # [H, W, 3]


class Camera:
    """A graphics context of its own, made current before each picture and before it is freed: freeing it
    while another one is current would take that one's textures away."""

    def __init__(self, scene: Scene, size: int, shadows: bool) -> None:
        import mujoco

        self._mujoco = mujoco
        self._scene = scene
        self._shadows = shadows
        model = scene.model
        self._window = window(size, "libero", "cameras")
        self._window.make_current()
        if not (shadows or has_gpu()):
            _tell_once()
        with _drawn_with(model, size, shadows):
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._geoms = mujoco.MjvScene(model, _MOST_GEOMS)
        self._eye = mujoco.MjvCamera()
        self._eye.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._options, self._force = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._options.geomgroup[0] = 0  # shapes that collide, which stand for the meshes that are seen
        self._area = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.zeros((size, size, 3), dtype=np.uint8)

    def frame(self, camera: str, view: str) -> Picture:
        """What this camera of the model sees now."""
        mujoco, scene = self._mujoco, self._scene
        self._window.make_current()
        self._eye.fixedcamid = _number(scene.model, camera)
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(
            scene.model, scene.data, self._options, self._force, self._eye, everything, self._geoms
        )
        if not self._shadows:
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._geoms.flags[flag] = False
            leave_out_unseen(self._geoms, scene.model, scene.data)
        mujoco.mjr_render(self._area, self._geoms, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._area, self._context)
        down, right = _TURNS[view]
        return self._pixels[::down, ::right].copy()

    def close(self) -> None:
        """Free everything."""
        self._window.make_current()
        self._context.free()
        self._window.free()


@contextlib.contextmanager
def _drawn_with(model: Any, size: int, shadows: bool) -> Iterator[None]:
    """What a graphics context reads from the model when it is made, and never again."""
    quality, whole = model.vis.quality, model.vis.global_
    before = (quality.shadowsize, quality.offsamples, whole.offwidth, whole.offheight)
    if not shadows:
        quality.shadowsize = quality.offsamples = 0
    whole.offwidth = whole.offheight = size
    yield
    quality.shadowsize, quality.offsamples, whole.offwidth, whole.offheight = before


def check_cameras(model: Any, names: Sequence[str]) -> None:
    """Raises `ConfigError` for a camera that the scene does not have."""
    for name in names:
        _number(model, name)


def _number(model: Any, camera: str) -> int:
    for prefix in _PREFIXES:
        for i in range(model.ncam):
            if model.camera(i).name == prefix + camera:
                return i
    there = ", ".join(model.camera(i).name.removeprefix("robot0_") for i in range(model.ncam))
    raise ConfigError(f"simulator.cameras (libero): there is no camera {camera!r}; there are: {there}")


@functools.cache
def _tell_once() -> None:
    _log.warning(
        "simulator libero: pictures are drawn without shadows and smooth edges, in a third of the time; "
        "simulator.shadows=true draws them"
    )
