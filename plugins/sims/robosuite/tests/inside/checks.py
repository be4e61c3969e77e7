"""What is checked with robosuite at hand: runs in its environment, and prints an outcome as JSON a line.

`python checks.py [NAME...]`; without names, all of them.
"""

from __future__ import annotations

import ctypes.util
import gc
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rlinf_sim_robosuite import drawing
from rlinf_sim_robosuite.config import RobosuiteConfig
from rlinf_sim_robosuite.library import controllers, library, make
from rlinf_sim_robosuite.simulator import RobosuiteSimulator

from rlinf_core.errors import ConfigError, PluginError, RlinfError

PEERS = ("Lift", "Door", "NutAssemblySingle", "PickPlaceSingle", "Wipe", "Stack")
DIMENSIONS = {"BASIC": 7, "OSC_POSE": 7, "OSC_POSITION": 4, "IK_POSE": 7}
DIMENSIONS |= {"JOINT_POSITION": 8, "JOINT_TORQUE": 8}


def simulator(num_envs: int = 1, **options: Any) -> RobosuiteSimulator:
    return RobosuiteSimulator(RobosuiteConfig(**options), num_envs, 0)


def actions(simulator: RobosuiteSimulator, length: int, seed: int = 0) -> np.ndarray:
    shape = (simulator.num_envs, length, *simulator.action_space.shape)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def peer(task: str, seed: int, config: RobosuiteConfig) -> tuple[Any, dict[str, Any]]:
    """robosuite's own environment at the start of an episode of this seed."""
    env = make(config)
    env.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
    return env, env.reset()


def an_episode_is_robosuites_bit_for_bit_also_after_others() -> None:
    for task in PEERS:
        keys = ("robot0_joint_pos", "robot0_eef_pos", "robot0_gripper_qpos", "object-state")
        config = RobosuiteConfig(task=task, reward="dense", keys=keys[: 2 if task == "Wipe" else 4])
        ours = RobosuiteSimulator(config, 1, 0)
        ours.reset([3])
        ours.step(actions(ours, 8, seed=5))
        env, shown = peer(task, 7, config)
        expected = np.concatenate([shown[key] for key in config.keys]).astype(np.float32)
        np.testing.assert_array_equal(ours.reset([7]).state[0], expected, task)
        chunk = actions(ours, 6)
        outcome = ours.step(chunk)
        played = [env.step(action) for action in chunk[0]]
        expected = np.concatenate([played[-1][0][key] for key in config.keys]).astype(np.float32)
        np.testing.assert_array_equal(outcome.observation.state[0], expected, task)
        np.testing.assert_array_equal(outcome.rewards_NC[0], np.float32([each[1] for each in played]), task)
        ours.close()


def lift(reward: str) -> tuple[list[float], RobosuiteSimulator, Any]:
    """A scripted hand: above the cube, down to it, closed, up."""
    ours = simulator(reward=reward, keys=("cube_pos", "robot0_eef_pos"))
    state, paid, closed = ours.reset([5]).state[0], [], 0
    for _ in range(100):
        away = state[:3] - state[3:]
        beside = float(np.hypot(away[0], away[1]))
        closed += closed > 0 or bool(np.linalg.norm(away) < 0.01)
        action = np.zeros(7, dtype=np.float32)
        if not closed:  # down only where the cube is below
            action[:3] = np.clip(20 * away, -1, 1) * (1, 1, beside < 0.01)
        action[2] = 1.0 if closed > 6 else action[2]
        action[6] = 1.0 if closed else -1.0
        outcome = ours.step(action[None, None])
        paid.append(float(outcome.rewards_NC[0, 0]))
        if outcome.terminated_NC[0, 0]:
            break
        state = outcome.observation.state[0]
    return paid, ours, outcome


def success_ends_an_episode_and_each_way_of_paying_is_told_apart() -> None:
    paid = {}
    for reward in ("dense", "shifted", "sparse"):
        paid[reward], ours, outcome = lift(reward)
        assert outcome.success_N[0], f"the hand did not lift in {len(paid[reward])} steps"
        assert outcome.terminated_NC[0, 0]
        assert not outcome.truncated_NC[0, 0]
        ours.close()
    assert paid["dense"][-1] == 1.0
    assert max(paid["dense"][:-1]) < 0.7  # reaching and grasping pay 1.25 of 2.25
    np.testing.assert_allclose(paid["shifted"], np.array(paid["dense"]) - 1, atol=1e-6)
    assert paid["sparse"] == [0.0] * (len(paid["sparse"]) - 1) + [1.0]


def the_time_limit_truncates_and_an_early_end_terminates() -> None:
    ours = simulator(max_episode_steps=3)
    ours.reset([1])
    outcome = ours.step(np.zeros((1, 5, 7), dtype=np.float32))
    assert outcome.truncated_NC[0].tolist() == [False, False, True, False, False]
    assert not outcome.terminated_NC.any()
    assert outcome.executed_NC[0].tolist() == [True, True, True, False, False]
    wipe = simulator(task="Wipe", controller="JOINT_POSITION", max_episode_steps=200)  # an arm at its limits
    wipe.reset([1])
    hard = np.ones((1, 200, *wipe.action_space.shape), dtype=np.float32)
    outcome = wipe.step(hard)
    assert outcome.terminated_NC.any()
    assert not outcome.truncated_NC.any()
    assert not outcome.success_N[0]


def seeds_differ_and_sizes_too_where_the_scene_is_built_anew() -> None:
    ours = simulator(2)
    shown = ours.reset([1, 2]).state
    assert not np.array_equal(shown[0], shown[1])
    looks = {"reload": True, "cameras": ("frontview",), "image_size": 48}
    anew = simulator(**looks)
    sizes = []
    for seed in (1, 2, 1):
        shown = anew.reset([seed]).images["frontview"]
        model = anew._scenes[0].model
        sizes.append(model.geom_size[model.geom("cube_g0").id].copy())
    np.testing.assert_array_equal(sizes[0], sizes[2])
    assert not np.array_equal(sizes[0], sizes[1])
    np.testing.assert_array_equal(shown, simulator(**looks).reset([1]).images["frontview"])


def a_saved_state_goes_on_bit_for_bit_in_another_simulator() -> None:
    for options in (
        {"task": "Wipe"},
        {"task": "NutAssemblySingle", "controller": "JOINT_POSITION"},
        {"task": "TwoArmLift", "robots": ("Baxter",)},
        {"task": "Lift", "reload": True, "controller": "IK_POSE"},
    ):
        first, second = simulator(max_episode_steps=9, **options), simulator(max_episode_steps=9, **options)
        first.reset([4])
        second.reset([9])
        second.step(actions(second, 3, seed=8))
        shown = first.step(actions(first, 4)).observation
        state = first.save_state()
        np.testing.assert_array_equal(second.load_state(state).state, shown.state)
        for turn in range(3):  # over the end of the episode
            expected, found = first.step(actions(first, 4, turn)), second.step(actions(first, 4, turn))
            np.testing.assert_array_equal(found.observation.state, expected.observation.state, str(options))
            np.testing.assert_array_equal(found.rewards_NC, expected.rewards_NC)
            np.testing.assert_array_equal(found.truncated_NC, expected.truncated_NC)
    refused(PluginError, "a state of 1 x Lift does not fit 2 x Lift", lambda: simulator(2).load_state(state))


def pictures_are_robosuites_own_upright() -> None:
    ours = simulator(cameras=("frontview", "robot0_eye_in_hand"), image_size=96, shadows=True)
    shown = ours.reset([3]).images
    env = ours._scenes[0]._env
    from robosuite.utils.binding_utils import MjRenderContextOffscreen

    MjRenderContextOffscreen(env.sim, device_id=-1)
    env.sim._render_context_offscreen.vopt.geomgroup[0] = 0
    for camera, pictures in shown.items():
        expected = env.sim.render(width=96, height=96, camera_name=camera)[::-1]
        apart = np.abs(expected.astype(int) - pictures[0].astype(int))
        assert apart.mean() < 1.0, f"{camera}: {apart.mean()}"
        assert pictures[0].std() > 10
    table = shown["frontview"][0].astype(int)
    assert table[60:75, 30:66].mean() > table[5:20, 5:30].mean()  # the white table is below the grey wall


def what_is_left_out_of_a_picture_is_not_in_it() -> None:
    cameras = ("agentview", "robot0_eye_in_hand", "birdview", "robot0_robotview")
    ours = simulator(task="PickPlace", cameras=cameras, image_size=64)
    ours.reset([1])
    found = ours.step(actions(ours, 12)).observation.images
    kept, drawing.leave_out_unseen = drawing.leave_out_unseen, lambda *scene: None
    try:
        expected = ours._observation([0]).images
    finally:
        drawing.leave_out_unseen = kept
    for camera in cameras:
        np.testing.assert_array_equal(found[camera], expected[camera], camera)


def simulators_draw_side_by_side_and_after_one_was_closed() -> None:
    options = {"cameras": ("agentview",), "image_size": 48}
    first, second = simulator(2, **options), simulator(1, task="Door", **options)
    before = [each.reset(seeds).images["agentview"] for each, seeds in ((first, [1, 2]), (second, [3]))]
    again = first.restart({1: 2}).images["agentview"]
    np.testing.assert_array_equal(again, before[0])
    second.close()
    del second
    gc.collect()
    np.testing.assert_array_equal(first.reset([1, 2]).images["agentview"], before[0])
    first.offload()
    first.onload()
    np.testing.assert_array_equal(first.reset([1, 2]).images["agentview"], before[0])
    assert first.render().shape == (2, 256, 256, 3)


def every_controller_moves_a_panda_or_says_why_not() -> None:
    for name, size in DIMENSIONS.items():
        assert name in controllers()
        ours = simulator(controller=name)
        assert ours.action_space.shape == (size,), (name, ours.action_space)
        shown = ours.reset([0]).state
        moved = ours.step(actions(ours, 3)).observation.state
        assert np.isfinite(moved).all()
        assert not np.array_equal(moved, shown)
        ours.close()
    with folder() as place:
        (place / "stiff.json").write_text(json.dumps(soft("OSC_POSE", kp=300)))
        assert simulator(controller=str(place / "stiff.json")).action_space.shape == (7,)
        (place / "wide.json").write_text(json.dumps(soft("OSC_POSE", impedance_mode="variable_kp")))
        wide = simulator(controller=str(place / "wide.json"))
        assert wide.action_space.shape == (13,)  # six stiffnesses, six of the pose, the gripper
        assert (wide.action_space.low, wide.action_space.high) == (-1.0, 1.0)
        np.testing.assert_array_equal(wide._centre_A[:6], 150.0)
        np.testing.assert_array_equal(wide._half_A[:6], 150.0)
        (place / "broken.json").write_text("{")
        refused(
            ConfigError, r"broken.json cannot be read", lambda: simulator(controller=f"{place}/broken.json")
        )
    refused(ConfigError, "cannot be read as a controller", lambda: simulator(controller="none.json"))
    free = simulator(controller="WHOLE_BODY_IK")
    assert free.action_space.high == np.inf
    assert np.isfinite(free.reset([0]).state).all()
    assert "JOINT_VELOCITY" in controllers()  # but robosuite 1.5.2 cannot make it itself
    refused(
        ConfigError,
        "with Panda, controller JOINT_VELOCITY and",
        lambda: simulator(controller="JOINT_VELOCITY"),
    )


def soft(kind: str, **changed: Any) -> dict[str, Any]:
    return library().load_part_controller_config(default_controller=kind) | changed


def other_robots_and_two_arms_work() -> None:
    sizes = {("Lift", ("Sawyer",)): 7, ("TwoArmPegInHole", ("Panda", "UR5e")): 12}
    for (task, robots), size in sizes.items():
        ours = simulator(task=task, robots=robots)
        assert ours.action_space.shape == (size,), (task, robots, ours.action_space)
        ours.reset([0])
        assert np.isfinite(ours.step(actions(ours, 2)).observation.state).all()
    two = simulator(task="TwoArmLift")
    assert two.action_space.shape == (14,)


def what_does_not_exist_is_refused_with_near_names() -> None:
    for options, said in (
        ({"task": "Lifft"}, "simulator.task (robosuite): there is no task 'Lifft'; near names: Lift"),
        (
            {"robots": ("panda2",)},
            "simulator.robots (robosuite): there is no robot 'panda2'; near names: Panda",
        ),
        (
            {"controller": "OSC"},
            "simulator.controller (robosuite): there is no controller 'OSC'; near names: OSC_POSE",
        ),
        ({"cameras": ("agent",)}, "Lift has no camera 'agent'; near names: agentview"),
        ({"keys": ("cube_position",)}, "Lift shows no 'cube_position'; near names: cube_pos"),
        ({"kwargs": {"table_size": 1}}, "Lift takes no 'table_size'; near names: table_full_size"),
        ({"task": "TwoArmLift", "robots": ("Panda",)}, "TwoArmLift takes two robots, or one with two arms"),
        ({"robots": ("Panda", "Panda")}, "Lift takes one robot; these are Panda, Panda"),
    ):
        refused(ConfigError, said, lambda options=options: simulator(**options))


def without_a_renderer_pictures_are_refused_and_states_are_not() -> None:
    find, asked = ctypes.util.find_library, os.environ.pop("MUJOCO_GL", None)
    ctypes.util.find_library = lambda name: None
    try:
        assert simulator().reset([0]).state is not None
        refused(ConfigError, "simulator.cameras (robosuite): no OpenGL library", draw)
        refused(ConfigError, "tried EGL and OSMesa", draw)
        refused(ConfigError, "apt-get install libosmesa6", draw)
        os.environ["MUJOCO_GL"] = "glx"
        refused(ConfigError, "MUJOCO_GL=glx: the simulator robosuite draws with egl or osmesa", draw)
    finally:
        ctypes.util.find_library = find
        os.environ.pop("MUJOCO_GL", None)
        if asked is not None:
            os.environ["MUJOCO_GL"] = asked


def draw() -> None:
    simulator(cameras=("agentview",)).reset([0])


def memory_is_flat_over_a_thousand_resets() -> None:
    ours = simulator()
    for seed in range(100):
        ours.reset([seed])
    before = resident()
    for seed in range(1000):
        ours.reset([seed])
    assert resident() - before < 8 * 2**20, f"grew by {(resident() - before) / 2**20:.1f} MiB"


def resident() -> int:
    gc.collect()
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def refused(kind: type[RlinfError], said: str, do: Callable[[], object]) -> None:
    told = None
    try:
        do()
    except kind as err:
        told = str(err)
    assert told is not None, f"nothing said {said!r}"
    assert said in told, f"{said!r} is not in {told}"


CHECKS = [
    an_episode_is_robosuites_bit_for_bit_also_after_others,
    success_ends_an_episode_and_each_way_of_paying_is_told_apart,
    the_time_limit_truncates_and_an_early_end_terminates,
    seeds_differ_and_sizes_too_where_the_scene_is_built_anew,
    a_saved_state_goes_on_bit_for_bit_in_another_simulator,
    pictures_are_robosuites_own_upright,
    what_is_left_out_of_a_picture_is_not_in_it,
    simulators_draw_side_by_side_and_after_one_was_closed,
    every_controller_moves_a_panda_or_says_why_not,
    other_robots_and_two_arms_work,
    what_does_not_exist_is_refused_with_near_names,
    without_a_renderer_pictures_are_refused_and_states_are_not,
    memory_is_flat_over_a_thousand_resets,
]

if __name__ == "__main__":
    for check in CHECKS:
        if check.__name__ in sys.argv[1:] or len(sys.argv) == 1:
            try:
                check()
            except Exception:
                print(json.dumps({"check": check.__name__, "failed": traceback.format_exc()}), flush=True)
            else:
                print(json.dumps({"check": check.__name__, "failed": None}), flush=True)
