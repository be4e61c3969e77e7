"""A small simulator whose every number can be worked out by hand, and the environment role over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_core.api import ActionSample, Model, Observation, Simulator, Space, Transition, WeightBucket
from rlinf_core.config.schema import Component, RunConfig
from rlinf_core.plugins import NoConfig
from rlinf_core.roles import environment as role
from rlinf_core.roles import policy as policy_role
from rlinf_core.roles.environment import EnvironmentWorker
from rlinf_core.roles.policy import PolicyWorker
from rlinf_core.roles.setup import Spaces
from rlinf_core.types import EpisodeRequest, Trajectory
from rlinf_core.worker import WorkerContext


@dataclass
class Rules:
    """Success at 3; terminates below -2; `sticky` goes on after success, as some simulators do. The
    simulator itself cuts episodes at `limit`, or leaves that to the recorder."""

    limit: int = 6
    sticky: bool = False
    cuts: bool = True
    restarts: bool = False


class Line(Simulator):
    """A point on a line, moved by actions; the reward of an action is where it leads. Starts at
    `seed % 3`. The observation buffer is reused on purpose."""

    action_space = Space(shape=(1,), low=-1.0, high=1.0)
    observation_space = {"state": Space(shape=(2,))}  # noqa: RUF012

    def __init__(self, config: Rules, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self.max_episode_steps = config.limit
        self.buffer = np.zeros((num_envs, 2), dtype=np.float32)
        self.restarts = config.restarts
        self.resets: list[list[int]] = []
        self.running = np.zeros(num_envs, dtype=bool)

    def reset(self, seeds: Sequence[int]) -> Observation:
        self.resets.append(list(seeds))
        self.buffer[:, 0] = [seed % 3 for seed in seeds]
        self.buffer[:, 1] = 0
        return Observation(state=self.buffer)

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        self.resets.append(list(seeds.values()))
        for n, seed in seeds.items():
            self.buffer[n] = (seed % 3, 0)
            self.running[n] = True
        return Observation(state=self.buffer)

    def step(self, actions: Any) -> Transition:
        shape = actions.shape[:2]
        rewards = np.zeros(shape, dtype=np.float32)
        terminated, truncated, executed = (np.zeros(shape, dtype=bool) for _ in range(3))
        success = np.zeros(shape, dtype=bool)
        final = np.full_like(self.buffer, np.nan)
        for n in range(shape[0]):
            for c in range(shape[1]):
                if not self.auto_reset and not self.running[n]:
                    break
                self.buffer[n] += (actions[n, c, 0], 1)
                place, steps = self.buffer[n]
                executed[n, c], rewards[n, c] = True, place
                success[n, c] = place >= 3
                terminated[n, c] = place < -2 or (place >= 3 and not self.config.sticky)
                late = self.config.cuts and steps >= self.config.limit
                truncated[n, c] = late and not terminated[n, c]
                if terminated[n, c] or truncated[n, c]:
                    final[n] = self.buffer[n]
                    if self.auto_reset:
                        self.buffer[n] = (-100.0, 0)  # the automatic reset, which must never be recorded
                    self.running[n] = False
                    break
        return Transition(
            Observation(state=self.buffer),
            rewards,
            terminated,
            truncated,
            executed,
            success.any(1),
            Observation(state=final),
            success if self.config.sticky else None,
        )


def lines(config: RunConfig, num_envs: int, groups: int, seed: int, lives: Any) -> list[Line]:
    """As simulators are built for a rank."""
    rules, size = config.simulator.config, -(-num_envs // groups)  # type: ignore[union-attr]
    return [Line(rules, size, seed + i) for i in range(groups)]


class Push(Model):
    """Moves by its one weight, `chunk` times a decision; log-probabilities count actions, or at the finer
    level two tokens an action. A value is the place it is at."""

    chunk = 1
    finer = False

    def bind(self, observation_space: Any, action_space: Space) -> None:
        self.bound = (observation_space, action_space)

    def module(self, seed: int = 0) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def act(self, module: Any, observations: Any, seeds: Sequence[int], greedy: bool = False) -> ActionSample:
        self.seeds = getattr(self, "seeds", [])
        self.seeds.append(list(seeds))
        self.shown = [*getattr(self, "shown", []), observations["state"].tolist()]
        rows = len(observations["state"])
        actions = module.weight.detach().expand(rows, self.chunk, 1) * (0.0 if greedy else 1.0)
        count = self.chunk * (2 if self.finer else 1)
        each = torch.arange(1.0, count + 1).expand(rows, count)
        level = {"logprobs_NK" if self.finer else "logprobs_NC": each}
        return ActionSample(actions.clone(), each.sum(1), **level)

    def collate(self, rows: Any, width: int | None = None) -> dict[str, torch.Tensor]:
        raise AssertionError("not used here")

    def policy_outputs(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("not used here")


def worker(
    monkeypatch: pytest.MonkeyPatch,
    *,
    num_envs: int = 2,
    push: float = 1.0,
    chunk: int = 1,
    groups: int = 1,
    finer: bool = False,
    **rules: Any,
) -> EnvironmentWorker:
    model = Push(NoConfig())
    model.chunk, model.finer = chunk, finer
    monkeypatch.setattr(role, "build_simulators", lines)
    monkeypatch.setattr(policy_role, "build_model", lambda config, spaces: model)
    simulator = Component("simulators", "line", Rules(**rules))
    blank = Component("", "", NoConfig())
    config = RunConfig(blank, blank, blank, blank, simulator=simulator)
    policy = PolicyWorker(WorkerContext("rollout[0]"), config, spaces=Spaces({}, Space()))
    policy.load_weights([WeightBucket(7, {"weight": torch.tensor([[push]])}, last=True)])
    made = EnvironmentWorker(
        WorkerContext(peers={"rollout[0]": policy}), config, num_envs=num_envs, groups=groups
    )
    made.connect_beside("rollout[0]")
    return made


def policy_of(made: EnvironmentWorker) -> PolicyWorker:
    policy = made.context.peers["rollout[0]"]
    assert isinstance(policy, PolicyWorker)
    return policy


def ask(*starts: int) -> Iterator[list[EpisodeRequest]]:
    """One group an initial state, each with one episode."""
    for group, start in enumerate(starts):
        yield [EpisodeRequest(group=group, replica=0, initial_state=start, seed=100 * group)]


def episodes(made: EnvironmentWorker, *starts: int, greedy: bool = False) -> list[Trajectory]:
    return [row for chunk in made.rollout(ask(*starts), greedy=greedy) for row in chunk]
