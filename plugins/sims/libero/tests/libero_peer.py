"""Plays an episode twice in LIBERO's environment: by our simulator, and by LIBERO's own evaluation loop.

Run by the Python of LIBERO's environment; prints how they compare as one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rlinf_sim_libero import camera as drawing
from rlinf_sim_libero.camera import Camera
from rlinf_sim_libero.config import LiberoConfig
from rlinf_sim_libero.scene import Scene, axis_angle
from rlinf_sim_libero.simulator import LiberoSimulator

SUITE, NUMBER, SETTLE, STEPS, SIZE = "libero_goal", 3, 10, 12, 64
REST = [0.0] * 6 + [-1.0]
CAMERAS = {"agentview": "agentview", "eye_in_hand": "robot0_eye_in_hand"}  # ours -> LIBERO's


def evaluation(task: int, actions: NDArray[np.float32]) -> tuple[Any, str, list[Any]]:
    """LIBERO's own environment after its reset, an initial state of it, ten steps at rest and the actions."""
    from libero.libero import get_libero_path
    from libero.libero.benchmark import get_benchmark
    from libero.libero.envs import OffScreenRenderEnv

    benchmark = get_benchmark(SUITE)()
    told = benchmark.get_task(task)
    problem = Path(get_libero_path("bddl_files")) / told.problem_folder / told.bddl_file
    env = OffScreenRenderEnv(bddl_file_name=str(problem), camera_heights=SIZE, camera_widths=SIZE)
    env.seed(0)
    env.reset()
    env.set_init_state(benchmark.get_task_init_states(task)[NUMBER])
    for _ in range(SETTLE):
        env.step(REST)
    return env, told.language, [env.step(action) for action in actions]


def pictures(scene: Scene, shadows: bool, whole: bool = True) -> dict[str, NDArray[np.int64]]:
    """As the scene is, with all meshes or without those outside."""
    camera = Camera(scene, SIZE, shadows)
    leave_out = drawing.leave_out_unseen
    drawing.leave_out_unseen = (lambda *_: None) if whole else leave_out
    drawn = {name: camera.frame(name, "raw").astype(np.int64) for name in CAMERAS}
    drawing.leave_out_unseen = leave_out
    camera.close()
    return drawn


def theirs(env: Any) -> dict[str, NDArray[np.int64]]:
    """By LIBERO's own renderer."""
    env.sim.forward()
    env.sim._render_context_offscreen.gl_ctx.make_current()
    return {
        name: env.sim.render(SIZE, SIZE, camera_name=own).astype(np.int64) for name, own in CAMERAS.items()
    }


def furthest(first: dict[str, NDArray[np.int64]], second: dict[str, NDArray[np.int64]]) -> int:
    return max(int(np.abs(first[name] - second[name]).max()) for name in CAMERAS)


def success(ours: LiberoSimulator, scene: Scene) -> dict[str, Any]:
    """What becomes of a chunk of three actions once somebody has turned the stove on."""
    knob = scene.model.joint("flat_stove_1_button").qposadr[0]
    ours.auto_reset = False
    scene.data.qpos[knob] = 1.0
    outcome = ours.step(np.tile(np.float32(REST), (2, 3, 1)))
    glow = []
    for again in (lambda: ours.render_some([0]), lambda: ours.restart({0: NUMBER})):
        again()
        glow.append(float(scene.model.site("flat_stove_1_burner").rgba[3]) > 0)
    return {
        "rewards": outcome.rewards_NC.tolist(),
        "terminated": outcome.terminated_NC.tolist(),
        "executed": outcome.executed_NC.tolist(),
        "success": outcome.success_N.tolist(),
        "glow": glow,
    }


def evicted(task: int) -> bool:
    """Whether episodes of two tasks go on alike where one model is kept and where both are."""
    actions = np.random.default_rng(1).uniform(-1, 1, (3, 2, 7)).astype(np.float32)
    seen = []
    for scenes in (1, 2):
        config = LiberoConfig(SUITE, f"{task},0", cameras=(), settle_steps=1, scenes=scenes)
        simulator = LiberoSimulator(config, 3, 0)
        simulator.reset([0, 1, 2])
        seen.append(np.stack([simulator.step(actions).observation.state for _ in range(2)]))
        simulator.close()
    return bool(np.array_equal(*seen))


def compare(task: int) -> dict[str, Any]:
    """Physics, rewards and what is shown, after the same actions."""
    ours = LiberoSimulator(LiberoConfig(SUITE, task, image_size=SIZE), 2, 0)
    instruction = ours.reset([NUMBER, NUMBER + 1]).instruction
    actions = np.random.default_rng(task).uniform(-1, 1, (STEPS, 2, 7)).astype(np.float32)
    outcomes = [ours.step(each[:, None]) for each in actions]  # two episodes take turns in one model
    scene = ours._scene(ours._seats[0])
    with contextlib.redirect_stdout(sys.stderr):  # LIBERO is talkative
        env, told, stepped = evaluation(task, actions[:, 0])
    data, shown = env.sim.data, stepped[-1][0]
    physics = all(
        np.array_equal(getattr(data._data, name), getattr(scene.data, name))
        for name in ("qpos", "qvel", "qacc_warmstart")
    )
    expected = np.concatenate(
        [
            shown["robot0_eef_pos"],
            axis_angle(shown["robot0_eef_quat"][[3, 0, 1, 2]]),
            shown["robot0_gripper_qpos"],
        ]
    )
    return {
        "instruction": instruction == [told, told],
        "physics": physics,
        "furniture": np.array_equal(env.sim.model._model.body_pos, scene.model.body_pos),
        "rewards": [step[1] for step in stepped] == [each.rewards_NC[0, 0] for each in outcomes],
        "state": float(np.abs(outcomes[-1].observation.state[0] - expected).max()),
        "pictures": furthest(pictures(scene, shadows=True), theirs(env)),
        "meshes_outside": furthest(pictures(scene, False, whole=False), pictures(scene, False)),
        "success": success(ours, scene),
        "evicted": evicted(task),
    }


if __name__ == "__main__":
    result = json.dumps(compare(int(sys.argv[1])))
    print(result, flush=True)
    os._exit(0)  # LIBERO's renderer complains when it is taken apart
