"""Episodes over worker processes are those of a simulator in this one, whatever dies in between."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_core.api import ActionSample, Model, WeightBucket
from rlinf_core.config.schema import Component, EnvPoolConfig, RunConfig, ScheduleConfig, TrainConfig
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import NoConfig
from rlinf_core.pool.simulator import SimulatorPool
from rlinf_core.roles import environment as role
from rlinf_core.roles import policy as policy_role
from rlinf_core.roles.env_group import EnvironmentReport
from rlinf_core.roles.environment import EnvironmentWorker
from rlinf_core.roles.policy import PolicyWorker
from rlinf_core.roles.setup import Spaces
from rlinf_core.roles.simulators import groups_beside
from rlinf_core.types import EpisodeRequest, Trajectory
from rlinf_core.worker import WorkerContext

sys.path.insert(0, str(Path(__file__).parents[1] / "pool"))
from pool_simulators import Counter, CounterConfig

Played = tuple[list[Trajectory], EnvironmentReport]
REQUESTS = [EpisodeRequest(group=i // 2, replica=i % 2, initial_state=10 + i, seed=i) for i in range(10)]


class Step(Model):
    """Moves by a number that the decision's seed makes."""

    def bind(self, observation_space: Any, action_space: Any) -> None:
        """Nothing to do."""

    def module(self, seed: int = 0) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def act(self, module: Any, observations: Any, seeds: Any, greedy: bool = False) -> ActionSample:
        moves = torch.tensor([seed % 1000 / 1000 for seed in seeds], dtype=torch.float32)
        return ActionSample(moves.view(-1, 1, 1), -moves)

    def collate(self, rows: Any, width: int | None = None) -> Any:
        """Not used."""

    def policy_outputs(self, module: Any, inputs: Any, want: Any, sampling: Any = None) -> Any:
        """Not used."""

    def export(self, state: Any, path: Any) -> None:
        """Not used."""


@pytest.fixture
def play(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., tuple[list[Trajectory], EnvironmentReport]]]:
    """Plays all requests in environments of counters: `processes` for each of two groups, or in this one."""
    workers: list[EnvironmentWorker] = []

    def simulators(config: RunConfig, num_envs: int, groups: int, seed: int, lives: Any) -> list[Any]:
        rules, size = config.simulator.config, -(-num_envs // groups)  # type: ignore[union-attr]
        if not config.env_pool.processes:
            return [Counter(rules, size, seed) for _ in range(groups)]
        common = {"name": "counter", "target": "pool_simulators:Counter", "program": Program.own()}
        pool = config.env_pool
        common |= {"processes": pool.processes, "timeout_s": pool.timeout_s, "lives": lives}
        return [SimulatorPool(rules, size, seed, **common) for _ in range(groups)]

    def run(processes: int = 0, groups: int = 2, killed: bool = False, **rules: Any) -> Played:
        monkeypatch.setattr(role, "build_simulators", simulators)
        model = Step(NoConfig())
        monkeypatch.setattr(policy_role, "build_model", lambda config, spaces: model)
        monkeypatch.setattr(
            policy_role, "build_acting_module", lambda config, model: model.module(config.seed)
        )
        part = Component("", "", None)
        simulator = Component("simulators", "counter", CounterConfig(**rules))
        pool = EnvPoolConfig(processes=processes, timeout_s=2.0)
        config = RunConfig(part, part, part, part, simulator=simulator, env_pool=pool)
        environment = EnvironmentWorker(WorkerContext(), config, num_envs=4, groups=groups)
        workers.append(environment)
        policy = PolicyWorker(
            WorkerContext(name="rollout[0]"), config, spaces=Spaces({}, Counter.action_space)
        )
        policy.load_weights([WeightBucket(version=0, tensors={"weight": torch.ones(1, 1)})])
        environment.context.peers["rollout[0]"] = policy
        environment.connect_beside("rollout[0]")
        if killed:
            for group in environment.groups:
                os.kill(group.simulator.process_ids()[0], signal.SIGKILL)
            environment.offload()
        stage = environment.rollout(iter([REQUESTS]))
        rows: list[Trajectory] = []
        while True:
            try:
                rows += next(stage)
            except StopIteration as end:
                return rows, end.value

    yield run
    for worker in workers:
        worker.close()


def number(row: Trajectory) -> int:
    """Of its request."""
    return 2 * row.group + row.replica


def assert_equal(ours: list[Trajectory], theirs: list[Trajectory]) -> None:
    for mine, other in zip(sorted(ours, key=number), sorted(theirs, key=number), strict=True):
        assert (mine.group, mine.replica, mine.reward, mine.error) == (
            other.group,
            other.replica,
            other.reward,
            other.error,
        )
        for name in ("actions", "logprobs", "mask", "step_rewards", "executed"):
            assert np.array_equal(getattr(mine, name), getattr(other, name)), name
        for name, shown in other.observations.items():
            assert np.array_equal(mine.observations[name], shown), name


@pytest.mark.parametrize("restarts", [True, False])
def test_episodes_over_processes_are_the_same(play: Any, restarts: bool) -> None:
    here, _ = play(restarts=restarts)
    rows, report = play(processes=2, restarts=restarts)
    assert_equal(rows, here)
    assert (report.restarts, report.lost, report.dropped, report.actions) == (0, 0, 0, 40)


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("how", ["die", "raise", "hang"])
def test_lost_episodes_are_played_again_as_if_nothing_had_been(
    play: Any, tmp_path: Path, how: str, restarts: bool
) -> None:
    here, _ = play(restarts=restarts)
    once = str(tmp_path / "once")
    rows, report = play(processes=1, restarts=restarts, faulty_seed=13, fault=how, once=once)
    assert_equal(rows, here)
    assert (report.restarts, report.dropped) == (1, 0)
    assert report.lost == 2  # its environment's, and that beside it in the same process


def test_deaths_between_rollouts_are_told_by_the_next(play: Any) -> None:
    here, _ = play()
    rows, report = play(processes=1, killed=True)
    assert_equal(rows, here)
    assert (report.restarts, report.lost, report.dropped) == (2, 0, 0)


@pytest.mark.parametrize("how", ["die", "hang"])
def test_one_group_plays_on_while_the_other_hangs_or_starts_again(
    play: Any, tmp_path: Path, how: str
) -> None:
    rows, report = play(processes=1, faulty_seed=13, fault=how, once=str(tmp_path / "once"))
    assert report.lost == 2
    arrived = [number(row) for row in rows]
    assert arrived[:2] == [0, 1]
    if how == "hang":  # two seconds are time for all that is left
        assert set(arrived[2:8]) == set(range(4, 10))
    assert sorted(arrived) == list(range(10))


def test_an_episode_that_always_kills_is_given_up_and_the_others_are_not(play: Any) -> None:
    here, _ = play()
    rows, report = play(processes=2, faulty_seed=13, fault="die")
    rows.sort(key=number)
    here.sort(key=number)
    assert [row.error is None for row in rows] == [i != 3 for i in range(10)]
    given_up = rows[3]
    assert given_up.error is not None
    assert "died, hung or raised" in given_up.error
    assert (given_up.reward, given_up.length, given_up.finish) == (None, 0, "abort")
    assert_equal(rows[:3] + rows[4:], here[:3] + here[4:])
    assert (report.restarts, report.lost, report.dropped) == (2, 2, 1)


def test_groups_beside_a_policy_need_processes() -> None:
    def config(processes: int, stages: int = 0) -> RunConfig:
        part = Component("", "", None)
        pool, schedule = EnvPoolConfig(processes=processes), ScheduleConfig(stages=stages)
        return RunConfig(part, part, part, part, env_pool=pool, schedule=schedule, train=TrainConfig())

    assert groups_beside(config(0, stages=3), 8) == 1
    assert [groups_beside(config(n), 8) for n in (1, 2, 5)] == [1, 2, 2]
    assert groups_beside(config(4, stages=3), 8) == 3
    assert groups_beside(config(4), 1) == 1
