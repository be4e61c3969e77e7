"""MuJoCo scenes drawn without a window: by a display GPU through EGL, else by OSMesa on the CPU.

Simulators in environments of their own use it too: beside numpy and MuJoCo it imports nothing.
"""

from __future__ import annotations

import ctypes.util
import functools
import glob
import importlib
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_core.types import Picture

_log = logging.getLogger(__name__)
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
_PACKAGES = "with Debian or Ubuntu: apt-get install libosmesa6, or libegl1 libgl1-mesa-dri"
_MOST_GEOMS = 2000


class Camera:
    """A graphics context of its own, made current before each picture and before it is freed: freeing it
    while another one is current would take that one's textures away.

    `view` are fields of MuJoCo's camera: `fixedcamid` (-1 = free), and where a free one looks; what is not
    said follows from the initial scene. Raises `ConfigError`, naming the simulator, where nothing can draw.
    """

    def __init__(
        self, model: Any, size: int, view: Mapping[str, Any], *, shadows: bool, simulator: str
    ) -> None:
        import mujoco

        self._mujoco = mujoco
        self._shadows = shadows
        if not shadows:  # software drawing spends most of its time on these; read when the context is made
            model.vis.quality.shadowsize = 0
            model.vis.quality.offsamples = 0
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, size)
        model.vis.global_.offheight = max(model.vis.global_.offheight, size)
        self._window = window(size, simulator)
        self._window.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, _MOST_GEOMS)
        self._options, self._force = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._area = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.zeros((size, size, 3), dtype=np.uint8)
        self._eye = self._placed(model, view)

    def frame(self, model: Any, data: Any, fixed: int | None = None) -> Picture:  # Any: MuJoCo's
        """The scene of `data`, upright; by the model's camera of this number, if one is given."""
        mujoco = self._mujoco
        if fixed is not None:
            self._eye.type, self._eye.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, fixed
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
        mujoco = self._mujoco
        data, eye = mujoco.MjData(model), mujoco.MjvCamera()
        mujoco.mj_forward(model, data)
        fixed = view.get("fixedcamid", -1) >= 0
        eye.type = mujoco.mjtCamera.mjCAMERA_FIXED if fixed else mujoco.mjtCamera.mjCAMERA_FREE
        eye.lookat[:] = np.median(data.geom_xpos, axis=0)
        eye.distance = model.stat.extent
        for name, value in view.items():
            if isinstance(value, np.ndarray):
                getattr(eye, name)[:] = value
            else:
                setattr(eye, name, value)
        return eye


def leave_out_unseen(scene: Any, model: Any, data: Any) -> None:  # Any: MuJoCo's
    """Meshes of an updated scene that lie outside its square picture: drawn on the CPU, each of their corners
    takes its time, and the picture is the same without."""
    import mujoco

    left, right = scene.camera[0], scene.camera[1]  # of two eyes in one place
    forward, up = np.array(left.forward), np.array(left.up)
    wide = left.frustum_top / left.frustum_near
    axes = np.stack([forward, np.cross(forward, up), up])
    away_GX = (data.geom_xpos - (np.array(left.pos) + np.array(right.pos)) / 2) @ axes.T
    reach_G = model.geom_rbound
    aside_G = np.abs(away_GX[:, 1:]).max(axis=1) - away_GX[:, 0] * wide
    unseen_G = (away_GX[:, 0] < -reach_G) | (aside_G > reach_G * np.hypot(1.0, wide))
    for i in range(scene.ngeom):
        geom = scene.geoms[i]
        is_mesh = geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and geom.type == mujoco.mjtGeom.mjGEOM_MESH
        if is_mesh and unseen_G[geom.objid]:
            geom.type = mujoco.mjtGeom.mjGEOM_NONE


def load_mujoco(simulator: str, install: str) -> Any:  # Any: the module has no types
    """MuJoCo. Raises `ConfigError` where it cannot be imported: it looks at `MUJOCO_GL` even if nothing is
    to be drawn."""
    try:
        return importlib.import_module("mujoco")
    except (ImportError, OSError, RuntimeError, AttributeError) as err:
        asked = os.environ.get("MUJOCO_GL")
        if asked and getattr(err, "name", None) != "mujoco":
            raise ConfigError(
                f"MUJOCO_GL={asked}: with it MuJoCo, which simulator {simulator} needs, cannot be imported: "
                f"{err}; unset it, or use egl or osmesa ({_PACKAGES})"
            ) from err
        raise ConfigError(
            f"simulator {simulator} needs MuJoCo, which cannot be imported: {err}; install it by {install}"
        ) from err


def graphics(simulator: str, setting: str = "images") -> str:
    """`egl` or `osmesa`: as `MUJOCO_GL` says, else EGL on a display GPU and OSMesa without.

    Raises `ConfigError`, naming the setting of the simulator that asks for pictures, where neither is
    installed.
    """
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked:
        if asked not in _LIBRARIES:
            raise ConfigError(f"MUJOCO_GL={asked}: the simulator {simulator} draws with egl or osmesa")
        return asked
    order = ("egl", "osmesa") if has_gpu() else ("osmesa", "egl")
    for name in order:
        if ctypes.util.find_library(_LIBRARIES[name]):
            return name
    raise ConfigError(
        f"simulator.{setting} ({simulator}): no OpenGL library to draw with was found (tried EGL and "
        f"OSMesa); {_PACKAGES}"
    )


def has_gpu() -> bool:
    """Whether there is a GPU that draws."""
    return bool(glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dri/renderD*"))


def window(size: int, simulator: str, setting: str = "images") -> Any:
    """A context to draw in, of MuJoCo's untyped modules. Raises `ConfigError` as `graphics`.

    Drawing on the CPU is done by the thread that asks for it unless `LP_NUM_THREADS` says otherwise: other
    cores have workers of their own, and handing each picture to a thread of Mesa's takes a fifth longer.
    """
    name = graphics(simulator, setting)
    os.environ.setdefault("LP_NUM_THREADS", "0")  # read by Mesa when the first context is made
    try:
        context = importlib.import_module(f"mujoco.{name}").GLContext(size, size)
    except (ImportError, OSError, RuntimeError, AttributeError) as err:
        raise ConfigError(
            f"simulator.{setting} ({simulator}): cannot draw with {name}: {err}; {_PACKAGES}, or choose with "
            "MUJOCO_GL"
        ) from err
    if not has_gpu():
        _tell_once(name, simulator)
    return context


@functools.cache
def _tell_once(name: str, simulator: str) -> None:
    _log.warning(
        "simulator %s: no display GPU; pictures are drawn on the CPU with %s (MUJOCO_GL chooses)",
        simulator,
        name,
    )
