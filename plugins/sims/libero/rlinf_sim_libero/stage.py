"""Scenes that are kept in memory, and cameras that draw them.

Axes: N environments.
"""

from __future__ import annotations

import logging
import time

import numpy as np
from numpy.typing import NDArray

from rlinf_core.media.offscreen import graphics
from rlinf_sim_libero.camera import Camera, check_cameras
from rlinf_sim_libero.config import LiberoConfig
from rlinf_sim_libero.installation import Installation
from rlinf_sim_libero.scene import Scene
from rlinf_sim_libero.tasks import Task, initial_states

_log = logging.getLogger(__name__)


class Stage:
    """At most `config.scenes` scenes; the one that was not needed for longest makes room for another."""

    def __init__(self, found: Installation, config: LiberoConfig, tasks: list[Task]) -> None:
        self._found = found
        self._config = config
        self._tasks = tasks
        self._states = [initial_states(found, task, str(config.init_states)) for task in tasks]
        self._scenes: dict[int, Scene] = {}  # the last one needed is last
        self._cameras: dict[int, Camera] = {}

    def prepare(self) -> None:
        """Make all scenes now, if there is room for them: at its start, a process may take its time."""
        if self._config.cameras:
            graphics("libero", "cameras")  # where there are none, say so before anything is compiled
        if len(self._tasks) <= self._config.scenes:
            for task in range(len(self._tasks)):
                self.scene(task)
                if self._config.cameras:
                    self._camera(task)

    def count(self, task: int) -> int:
        """How many initial states a task has."""
        return len(self._states[task])

    def scene(self, task: int) -> Scene:
        """Of the task with this place in the list; made if it is not there."""
        found = self._scenes.pop(task, None)
        if found is None:
            while len(self._scenes) >= self._config.scenes:
                self._drop(next(iter(self._scenes)))
            found = self._make(task)
        self._scenes[task] = found
        return found

    def picture(self, task: int, camera: str, view: str) -> NDArray[np.uint8]:
        """What a camera sees of the scene that was last asked for."""
        return self._camera(task).frame(camera, view)

    def keep(self) -> None:
        """Write every episode that is in a scene down in its seat."""
        for scene in self._scenes.values():
            scene.keep()

    def offload(self) -> None:
        """Free all graphics contexts; the next picture makes another."""
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()

    def close(self) -> None:
        """Free everything."""
        for task in list(self._scenes):
            self._drop(task)

    def _camera(self, task: int) -> Camera:
        found = self._cameras.get(task)
        if found is None:
            config = self._config
            found = self._cameras[task] = Camera(self._scenes[task], config.image_size, config.shadows)
        return found

    def _make(self, task: int) -> Scene:
        began = time.perf_counter()
        made = Scene(self._found, self._tasks[task], self._states[task], self._config.settle_steps)
        check_cameras(made.model, self._config.cameras)
        took = time.perf_counter() - began
        _log.info("simulator libero: %s compiled in %.1f s", self._tasks[task].name, took)
        return made

    def _drop(self, task: int) -> None:
        camera = self._cameras.pop(task, None)
        if camera is not None:
            camera.close()
        scene = self._scenes.pop(task)
        scene.keep()
        scene.close()
