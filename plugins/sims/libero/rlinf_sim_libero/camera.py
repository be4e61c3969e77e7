"""Pictures of a scene, drawn without a window.

LIBERO's renderer is not used: its shadows and smooth edges take nine tenths of the time where the CPU draws,
and it forgets which of several graphics contexts is current. Meshes are what is left to pay for, so those
outside a picture are not drawn; the picture is the same.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import functools
import glob
import importlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError
from rlinf_sim_libero.scene import Scene

_log = logging.getLogger(__name__)
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
_PACKAGES = "with Debian or Ubuntu: apt-get install libosmesa6, or libegl1 libgl1-mesa-dri"
_MOST_GEOMS = 2000
_PREFIXES = ("", "robot0_")  # of a camera's name in the model

Picture = NDArray[np.uint8]  # [H, W, 3]


class Camera:
    """A graphics context of its own, made current before each picture and before it is freed: freeing it
    while another one is current would take that one's textures away."""

    def __init__(self, scene: Scene, size: int, view: str, shadows: bool) -> None:
        import mujoco

        self._mujoco = mujoco
        self._scene = scene
        self._turn = {"raw": (1, 1), "upright": (-1, 1), "rotated": (-1, -1)}[view]
        self._shadows = shadows
        model = scene.model
        self._window = _window(size)
        self._window.make_current()
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

    def frame(self, camera: str) -> Picture:
        """What this camera sees now."""
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
            self._leave_out()
        mujoco.mjr_render(self._area, self._geoms, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._area, self._context)
        down, right = self._turn
        return self._pixels[::down, ::right].copy()

    def close(self) -> None:
        """Free everything."""
        self._window.make_current()
        self._context.free()
        self._window.free()

    def _leave_out(self) -> None:
        """Meshes whose ball lies outside the pyramid that the camera sees."""
        mujoco, model, data = self._mujoco, self._scene.model, self._scene.data
        left, right = self._geoms.camera[0], self._geoms.camera[1]  # of two eyes in one place
        forward, up = np.array(left.forward), np.array(left.up)
        wide = left.frustum_top / left.frustum_near  # pictures are square
        axes = np.stack([forward, np.cross(forward, up), up])
        away_GX = (data.geom_xpos - (np.array(left.pos) + np.array(right.pos)) / 2) @ axes.T
        reach_G = model.geom_rbound
        aside_G = np.abs(away_GX[:, 1:]).max(axis=1) - away_GX[:, 0] * wide
        unseen_G = (away_GX[:, 0] < -reach_G) | (aside_G > reach_G * np.hypot(1.0, wide))
        for i in range(self._geoms.ngeom):
            geom = self._geoms.geoms[i]
            if (
                geom.objtype == mujoco.mjtObj.mjOBJ_GEOM
                and geom.type == mujoco.mjtGeom.mjGEOM_MESH
                and unseen_G[geom.objid]
            ):
                geom.type = mujoco.mjtGeom.mjGEOM_NONE


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


def graphics() -> str:
    """`egl` or `osmesa`: as `MUJOCO_GL` says, else EGL on a display GPU and OSMesa without; empty if neither
    is installed. Raises `ConfigError` for another `MUJOCO_GL`."""
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked in ("disable", "disabled", "off", "false", "0"):
        return ""
    if asked:
        if asked not in _LIBRARIES:
            raise ConfigError(f"MUJOCO_GL={asked}: the simulator libero draws with egl or osmesa")
        return asked
    order = ("egl", "osmesa") if _has_gpu() else ("osmesa", "egl")
    return next((name for name in order if ctypes.util.find_library(_LIBRARIES[name])), "")


def prepare_graphics() -> None:
    """Tell robosuite, before it is imported, what to draw with: left alone it asks for EGL."""
    name = graphics()
    os.environ["MUJOCO_GL"] = name or "disabled"
    if name:
        os.environ.setdefault("PYOPENGL_PLATFORM", name)


def _window(size: int) -> Any:  # Any: a context of MuJoCo's untyped modules
    name = graphics()
    if not name:
        raise ConfigError(
            "simulator.cameras (libero): no OpenGL library to draw with was found, neither EGL nor OSMesa, "
            f"or MUJOCO_GL forbids it; {_PACKAGES}; without pictures: simulator.cameras=[]"
        )
    try:
        window = importlib.import_module(f"mujoco.{name}").GLContext(size, size)
    except (ImportError, OSError, RuntimeError, AttributeError) as err:
        raise ConfigError(
            f"simulator.cameras (libero): cannot draw with {name}: {err}; {_PACKAGES}, "
            "or choose with MUJOCO_GL"
        ) from err
    if not _has_gpu():
        _tell_once(name)
    return window


def _has_gpu() -> bool:
    return bool(glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dri/renderD*"))


@functools.cache
def _tell_once(name: str) -> None:
    _log.warning(
        "simulator libero: no display GPU; pictures are drawn on the CPU with %s (MUJOCO_GL chooses), "
        "without shadows and smooth edges unless simulator.shadows asks for them",
        name,
    )
