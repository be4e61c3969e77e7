"""Compares episodes of the simulator with those of ManiSkill itself, step by step, without any Vulkan driver.

Runs in ManiSkill's own environment; prints JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from rlinf_sim_maniskill import world
from rlinf_sim_maniskill.config import ManiSkillConfig
from rlinf_sim_maniskill.drawing import undrawn
from rlinf_sim_maniskill.simulator import ManiSkillSimulator

from rlinf_core.errors import RlinfError

TARGETS = "pd_ee_target_delta_pose"


def simulator(task: str, count: int = 1, **options: Any) -> ManiSkillSimulator:
    return ManiSkillSimulator(ManiSkillConfig(task, **options), count, 0)


def equal(*pairs: tuple[Any, Any]) -> bool:
    return all(np.array_equal(np.asarray(first), np.asarray(second)) for first, second in pairs)


def like_maniskill() -> dict[str, bool]:
    """An episode after another one, in chunks of five, next to the same one in ManiSkill."""
    ours = simulator("PickCube-v1", 2, reward="dense", max_episode_steps=40)
    actions = np.random.default_rng(0).uniform(-1, 1, (2, 30, 8)).astype(np.float32)
    with undrawn(True):
        theirs = gymnasium.make(
            "PickCube-v1",
            obs_mode="state",
            reward_mode="dense",
            sim_backend="physx_cpu",
            render_backend="none",
        )
    ours.reset([3, 4])
    ours.step(actions)
    shown = ours.reset([9, 7]).state
    begun, _ = theirs.reset(seed=7)
    found = [ours.step(actions[:, c : c + 5]) for c in range(0, 30, 5)]
    expected = [theirs.step(action) for action in actions[1]]
    rewards = np.concatenate([each.rewards_NC[1] for each in found])
    return {
        "start": equal((shown[1:], begun)),
        "states": equal(*((found[i].observation.state[1:], expected[5 * i + 4][0]) for i in range(6))),
        "rewards": equal((rewards, [each[1].item() for each in expected])),
    }


def saved(task: str, **options: Any) -> bool:
    """Saved and loaded states go on alike, over the end of the episode."""
    first, second = (simulator(task, 2, max_episode_steps=30, **options) for _ in range(2))
    size = first.action_space.shape[0]
    actions = np.random.default_rng(1).uniform(-1, 1, (2, 45, size)).astype(np.float32)
    first.reset([1, 2])
    second.reset([8, 9])
    seen = first.step(actions[:, :12]).observation.state
    state = first.save_state()
    same = [equal((second.load_state(state).state, seen))]
    for c in range(12, 45, 11):
        one, other = first.step(actions[:, c : c + 11]), second.step(actions[:, c : c + 11])
        same.append(
            equal((one.observation.state, other.observation.state), (one.rewards_NC, other.rewards_NC))
        )
    return all(same)


def rewards() -> dict[str, bool]:
    """Each way of paying, on the same actions."""
    actions = np.random.default_rng(2).uniform(-1, 1, (1, 6, 8)).astype(np.float32)
    paid = {}
    for reward in ("dense", "normalized", "shifted", "sparse"):
        one = simulator("PushCube-v1", reward=reward)
        one.reset([5])
        paid[reward] = one.step(actions).rewards_NC[0].astype(np.float64)
    return {
        "shifted": np.allclose(paid["shifted"], paid["normalized"] - 1, atol=1e-6),
        "sparse": not paid["sparse"].any(),
        "different": not np.allclose(paid["dense"], paid["normalized"]),
    }


def pushed(**options: Any) -> ManiSkillSimulator:
    """A cube whose goal is where it lies already."""
    one = simulator("PushCube-v1", max_episode_steps=4, **options)
    one.reset([5])
    env = one._worlds[0][1].env
    env.goal_region.set_pose(env.obj.pose)
    return one


def ends() -> dict[str, Any]:
    """Success ends an episode, or is told by action where it is ignored."""
    still = np.zeros((1, 6, 8), dtype=np.float32)
    ending, going = pushed(reward="sparse"), pushed(reward="sparse", ignore_terminations=True)
    one, other = ending.step(still), going.step(still)
    return {
        "terminated": one.terminated_NC[0].tolist(),
        "executed": one.executed_NC[0].tolist(),
        "paid": one.rewards_NC[0].tolist(),
        "successes": other.success_NC[0].tolist(),
        "truncated": other.truncated_NC[0].tolist(),
        "ignored_terminated": bool(other.terminated_NC.any()),
        "succeeded": [bool(one.success_N[0]), bool(other.success_N[0])],
    }


def refused(make: Callable[[], object]) -> str:
    try:
        make()
    except RlinfError as err:
        return f"{type(err).__name__}: {err}"
    return ""


def errors() -> dict[str, str]:
    return {
        "task": refused(lambda: simulator("PushCub-v1")),
        "import": refused(lambda: simulator("PushCube-v1", imports=("no_such_module",))),
        "files": refused(lambda: simulator("PickSingleYCB-v1")),
        "control": refused(lambda: simulator("PushCube-v1", control_mode="pd_wheel")),
        "robot": refused(lambda: simulator("PushCube-v1", robot="r2d2")),
        "reward": refused(lambda: simulator("PegInsertionSide-v1", reward="dense", kwargs={"nothing": 1})),
        "unpaid": refused(lambda: simulator("Empty-v1")),
        "assets": refused(lambda: simulator("PushCube-v1", assets="here")),
        "device": refused(lambda: simulator("PushCube-v1", device="cuda")),
        "renderer": refused(lambda: simulator("PushCube-v1", images=True)),
        "render": refused(lambda: simulator("PushCube-v1").render()),
    }


class Batch:
    """A batch as ManiSkill has it on a GPU: tensors of all environments, resets of some by `env_idx`."""

    num_envs, reconfiguration_freq, reward_mode = 3, 0, "normalized_dense"
    device = torch.device("cpu")
    single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        self._obs_mode, self.at = "state", torch.zeros(3, 1)
        self._init_raw_obs = self.at.clone()
        self.calls: list[Any] = []

    def reset(self, seed: list[int], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self.calls.append([self._obs_mode, seed, options["env_idx"].tolist()])
        self.at[options["env_idx"]] = float(seed[0])  # the seed of the first, as for torch's numbers
        return {}, {}

    def get_obs(self, info: dict[str, Any]) -> torch.Tensor:
        self.calls.append("look")
        return self.at.clone()

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        self.at = self.at + action
        done, paid = self.at[:, 0] >= 8, self.at[:, 0] / 10
        self.at[1] = torch.nan  # one of them has become unstable
        return self.at.clone(), paid, done, done & False, {"success": done}


def batched() -> dict[str, Any]:
    """How a batch is started and stepped."""
    double = Batch()
    world.make = lambda *_: double
    one = world.World(None, ManiSkillConfig("PushCube-v1"), 3, "none")
    one.start({0: 5, 2: 7})
    shown = one.look()[0]
    acted = one.act(np.array([[1.0], [1.0], [2.0]], dtype=np.float32), look=True)
    return {
        "calls": double.calls,
        "shown": shown[:, 0].tolist(),
        "then": np.nan_to_num(one.look()[0][:, 0]).tolist(),
        "sound": acted.sound_N.tolist(),
        "success": acted.success_N.tolist(),
        "paid": [round(float(each), 3) for each in acted.rewards_N],
    }


if __name__ == "__main__":
    robots = simulator("TwoRobotPickCube-v1", reward="normalized")
    found = {
        "like_maniskill": like_maniskill(),
        "saved": {
            "pushing": saved("PushCube-v1"),
            "targets": saved("PickCube-v1", control_mode=TARGETS),
            "rebuilt": saved("PegInsertionSide-v1"),
        },
        "rewards": rewards(),
        "ends": ends(),
        "errors": errors(),
        "batch": batched(),
        "robots": list(robots.action_space.shape),
        "tasks": robots.tasks(),
    }
    print(json.dumps(found))
