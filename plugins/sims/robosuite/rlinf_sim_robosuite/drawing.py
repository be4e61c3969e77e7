"""Pictures of scenes, drawn by MuJoCo without a window."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.media.offscreen import has_gpu, leave_out_unseen, window

_log = logging.getLogger(__name__)
_MOST_GEOMS = 10000
_COLLISION, _VISUAL = 0, 1  # groups of geoms

Picture = NDArray[np.uint8]  # [H, W, 3]


class Eye:
    """Draws scenes of one kind, in a graphics context of its own, which is made current before each picture
    and before it is freed: freeing it while another is current would take that one's textures away."""

    def __init__(self, model: Any, largest: int, shadows: bool) -> None:  # Any: of MuJoCo, which is untyped
        import mujoco

        self._mujoco, self._shadows = mujoco, shadows
        if not shadows:  # software drawing spends most of its time on these; read when the context is made
            model.vis.quality.shadowsize = 0
            model.vis.quality.offsamples = 0
        model.vis.global_.offwidth = model.vis.global_.offheight = largest
        self._window = window(largest, "robosuite", "cameras")
        if not (shadows or has_gpu()):
            _tell_once()
        self._window.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, _MOST_GEOMS)
        self._options, self._force = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._options.geomgroup[_COLLISION], self._options.geomgroup[_VISUAL] = 0, 1
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def frame(self, model: Any, data: Any, camera: str, size: int) -> Picture:  # Any: of MuJoCo
        """The scene of `data` as that camera of the model sees it, upright."""
        mujoco = self._mujoco
        self._window.make_current()
        self._camera.fixedcamid = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        everything, area = mujoco.mjtCatBit.mjCAT_ALL, mujoco.MjrRect(0, 0, size, size)
        mujoco.mjv_updateScene(model, data, self._options, self._force, self._camera, everything, self._scene)
        if not self._shadows:
            for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
                self._scene.flags[flag] = False
            leave_out_unseen(self._scene, model, data)
        mujoco.mjr_render(area, self._scene, self._context)
        pixels = np.empty((size, size, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(pixels, None, area, self._context)
        return pixels[::-1].copy()

    def close(self) -> None:
        """Free everything."""
        self._window.make_current()
        self._context.free()
        self._window.free()


@functools.cache
def _tell_once() -> None:
    _log.warning(
        "simulator robosuite: pictures are drawn without shadows and smooth edges, which takes a third of "
        "the time; simulator.shadows=true draws them"
    )
