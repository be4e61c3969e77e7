"""Pictures of environments, drawn without a window.

MuJoCo environments are drawn by one camera of this plugin, not by Gymnasium's renderer: that one takes a
graphics context for each environment and forgets which of them is current.
"""

from __future__ import annotations

import ctypes.util
import functools
import glob
import importlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError, PluginError
from rlinf_sim_gymnasium.layers import layers
from rlinf_sim_gymnasium.registry import Env

_log = logging.getLogger(__name__)
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
_PACKAGES = "with Debian or Ubuntu: apt-get install libosmesa6, or libegl1 libgl1-mesa-dri"
_MOST_GEOMS = 2000

Picture = NDArray[np.uint8]  # [H, W, 3]


class Pictures:
    """Draws the environments of one simulator; a camera exists from the first picture until `close`."""

    def __init__(self, envs: list[Env], size: int, shadows: bool) -> None:
        self._envs = envs
        self._size = size
        self._shadows = shadows
        self._camera: Camera | None = None
        self._view: Mapping[str, Any] = {}  # Any: fields of MjvCamera
        for env in envs:
            for layer in layers(env):
                if "mujoco_renderer" in vars(layer):
                    self._replace_renderer(layer)

    def draw(self, n: int) -> Picture:
        """Environment n as it is now."""
        frame = self._envs[n].render()
        if not isinstance(frame, np.ndarray):
            raise PluginError(f"simulator gymnasium: {self._envs[n]} gives no picture when it is rendered")
        return shrink(frame, self._size)

    def close(self) -> None:
        """Free the graphics context; the next picture makes another."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None

    def _replace_renderer(self, layer: Any) -> None:  # Any: a MuJoCo environment
        original = layer.mujoco_renderer
        self._view = {"fixedcamid": original.camera_id, **(original.default_cam_config or {})}
        layer.mujoco_renderer = _Stand(self, original.model, original.data)

    def _draw_mujoco(self, model: Any, data: Any) -> Picture:  # Any: of MuJoCo
        if self._camera is None:
            self._camera = Camera(model, self._size, self._shadows, self._view)
        return self._camera.frame(model, data)


class _Stand:
    """Stands where a MuJoCo environment has its own renderer."""

    def __init__(self, pictures: Pictures, model: Any, data: Any) -> None:
        self.model, self.data, self._pictures = model, data, pictures

    def render(self, render_mode: str | None) -> Picture:
        """What the environment's `render` returns."""
        return self._pictures._draw_mujoco(self.model, self.data)

    def close(self) -> None:
        """The camera belongs to the simulator."""


class Camera:
    """A graphics context of its own, made current before each picture and before it is freed: freeing it
    while another one is current would take that one's textures away."""

    def __init__(self, model: Any, size: int, shadows: bool, view: Mapping[str, Any]) -> None:
        import mujoco

        self._mujoco = mujoco
        self._shadows = shadows
        if not shadows:  # software drawing spends most of its time on these; read when the context is made
            model.vis.quality.shadowsize = 0
            model.vis.quality.offsamples = 0
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, size)
        model.vis.global_.offheight = max(model.vis.global_.offheight, size)
        self._window = _context(size)
        self._window.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, _MOST_GEOMS)
        self._options, self._force = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._area = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.zeros((size, size, 3), dtype=np.uint8)
        self._eye = self._placed(model, view)

    def frame(self, model: Any, data: Any) -> Picture:
        """The scene of `data`, upright."""
        mujoco = self._mujoco
        self._window.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, self._options, self._force, self._eye, everything, self._scene)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = self._shadows
        mujoco.mjr_render(self._area, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._area, self._context)
        return self._pixels[::-1].copy()

    def close(self) -> None:
        """Free everything."""
        self._window.make_current()
        self._context.free()
        self._window.free()

    def _placed(self, model: Any, view: Mapping[str, Any]) -> Any:
        """At the environment's own camera, else in front of the middle of the initial scene."""
        mujoco = self._mujoco
        data, eye = mujoco.MjData(model), mujoco.MjvCamera()
        mujoco.mj_forward(model, data)
        fixed = view["fixedcamid"] >= 0
        eye.type = mujoco.mjtCamera.mjCAMERA_FIXED if fixed else mujoco.mjtCamera.mjCAMERA_FREE
        eye.lookat[:] = np.median(data.geom_xpos, axis=0)
        eye.distance = model.stat.extent
        for name, value in view.items():
            if isinstance(value, np.ndarray):
                getattr(eye, name)[:] = value
            else:
                setattr(eye, name, value)
        return eye


def graphics() -> str:
    """`egl` or `osmesa`: as `MUJOCO_GL` says, else EGL on a display GPU and OSMesa without.

    Raises `ConfigError` where neither is installed.
    """
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked:
        if asked not in _LIBRARIES:
            raise ConfigError(f"MUJOCO_GL={asked}: the simulator gymnasium draws with egl or osmesa")
        return asked
    order = ("egl", "osmesa") if _has_gpu() else ("osmesa", "egl")
    for name in order:
        if ctypes.util.find_library(_LIBRARIES[name]):
            return name
    raise ConfigError(f"simulator.images (gymnasium): no OpenGL library to draw with was found; {_PACKAGES}")


def _context(size: int) -> Any:  # Any: a context of MuJoCo's untyped modules
    name = graphics()
    try:
        context = importlib.import_module(f"mujoco.{name}").GLContext(size, size)
    except (ImportError, OSError, RuntimeError, AttributeError) as err:
        raise ConfigError(
            f"simulator.images (gymnasium): cannot draw with {name}: {err}; {_PACKAGES}, "
            "or choose with MUJOCO_GL"
        ) from err
    if not _has_gpu():
        _tell_once(name)
    return context


def _has_gpu() -> bool:
    return bool(glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dri/renderD*"))


@functools.cache
def _tell_once(name: str) -> None:
    _log.warning(
        "simulator gymnasium: no display GPU; pictures are drawn on the CPU with %s (MUJOCO_GL chooses)", name
    )


def shrink(frame: NDArray[Any], size: int) -> Picture:
    """`[size, size, 3]`, each pixel the mean of what it covers, or the nearest one of a smaller frame."""
    height, width = frame.shape[:2]
    if (height, width) == (size, size):
        return np.asarray(frame, dtype=np.uint8)
    rows, columns = np.arange(size) * height // size, np.arange(size) * width // size
    if min(height, width) < size:
        return np.asarray(frame[rows][:, columns], dtype=np.uint8)
    sums = np.add.reduceat(np.add.reduceat(frame.astype(np.int64), rows, axis=0), columns, axis=1)
    areas = np.outer(np.diff(rows, append=height), np.diff(columns, append=width))[..., None]
    return np.asarray((sums + areas // 2) // areas, dtype=np.uint8)
