"""The environment role over a small simulator whose every number can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlinf_core.api import ActionSample, Model, Observation, Simulator, Space, Transition, WeightBucket
from rlinf_core.config.schema import Component, RunConfig
from rlinf_core.errors import ModelError
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
    """Success at 3; terminates below -2; `sticky` goes on after success, as some simulators do."""

    limit: int = 6
    sticky: bool = False


class Line(Simulator):
    """A point on a line, moved by actions; the reward of an action is where it leads. Starts at
    `seed % 3`. The observation buffer is reused on purpose."""

    action_space = Space(shape=(1,), low=-1.0, high=1.0)
    observation_space = {"state": Space(shape=(2,))}  # noqa: RUF012

    def __init__(self, config: Rules, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        self.max_episode_steps = config.limit
        self.buffer = np.zeros((num_envs, 2), dtype=np.float32)
        self.resets: list[list[int]] = []

    def reset(self, seeds: Sequence[int]) -> Observation:
        self.resets.append(list(seeds))
        self.buffer[:, 0] = [seed % 3 for seed in seeds]
        self.buffer[:, 1] = 0
        return Observation(state=self.buffer)

    def step(self, actions: Any) -> Transition:
        shape = actions.shape[:2]
        rewards = np.zeros(shape, dtype=np.float32)
        terminated, truncated, executed = (np.zeros(shape, dtype=bool) for _ in range(3))
        success = np.zeros(shape[0], dtype=bool)
        for n in range(shape[0]):
            for c in range(shape[1]):
                self.buffer[n] += (actions[n, c, 0], 1)
                place, steps = self.buffer[n]
                executed[n, c], rewards[n, c] = True, place
                success[n] |= place >= 3
                terminated[n, c] = place < -2 or (place >= 3 and not self.config.sticky)
                truncated[n, c] = steps >= self.config.limit and not terminated[n, c]
                if terminated[n, c] or truncated[n, c]:
                    self.buffer[n] = (-100.0, 0)  # the automatic reset, which must never be recorded
                    break
        return Transition(Observation(state=self.buffer), rewards, terminated, truncated, executed, success)


class Push(Model):
    """Moves by its one weight, `chunk` times a decision; log-probabilities count actions."""

    chunk = 1

    def bind(self, observation_space: Any, action_space: Space) -> None:
        self.bound = (observation_space, action_space)

    def module(self, seed: int = 0) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def act(self, module: Any, observations: Any, seeds: Sequence[int], greedy: bool = False) -> ActionSample:
        self.seeds = getattr(self, "seeds", [])
        self.seeds.append(list(seeds))
        rows = len(observations["state"])
        actions = module.weight.detach().expand(rows, self.chunk, 1) * (0.0 if greedy else 1.0)
        each = torch.arange(1.0, self.chunk + 1).expand(rows, self.chunk)
        return ActionSample(actions.clone(), each.sum(1), logprobs_NC=each)

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
    **rules: Any,
) -> EnvironmentWorker:
    model = Push(NoConfig())
    model.chunk = chunk
    monkeypatch.setattr(role, "build", lambda component, *args: Line(component.config, *args))
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


def test_an_episode_ends_with_success_and_its_reward_is_the_return_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, long = episodes(worker(monkeypatch), 2, 0)
    assert short.reward == 3.0
    assert short.success
    assert short.length == 1
    assert long.reward == 1.0 + 2.0 + 3.0
    assert long.observations["state"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert long.step_rewards is not None
    assert long.step_rewards.tolist() == [1, 2, 3]
    assert (long.finish, long.truncated, long.weight_version) == ("stop", False, 7)


def test_what_follows_a_success_is_not_recorded_even_if_the_simulator_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for sticky in (False, True):
        (row,) = episodes(worker(monkeypatch, num_envs=1, sticky=sticky), 1)
        assert row.reward == 2.0 + 3.0
        assert row.length == 2


def test_a_time_limit_truncates_and_a_failure_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    (idle,) = episodes(worker(monkeypatch, num_envs=1, push=0.0, limit=4), 1)
    assert (idle.length, idle.truncated, idle.finish, idle.success) == (4, True, "length", False)
    (fallen,) = episodes(worker(monkeypatch, num_envs=1, push=-1.0), 0)
    assert (fallen.length, fallen.truncated, fallen.finish, fallen.success) == (3, False, "stop", False)


def test_actions_of_a_chunk_after_the_end_count_neither_as_executed_nor_in_the_logprob(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (row,) = episodes(worker(monkeypatch, num_envs=1, chunk=2), 0)
    assert row.executed is not None
    assert row.executed.tolist() == [[True, True], [True, False]]
    assert row.logprobs.tolist() == [3.0, 1.0]
    assert row.reward == 6.0
    assert row.actions.shape == (2, 2, 1)
    assert row.mask.tolist() == [True, True]


def test_requests_fill_waves_and_seats_left_over_are_off_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    made = worker(monkeypatch, num_envs=2)
    rows = episodes(made, 0, 1, 2, 0, 1)
    assert [row.group for row in rows] == [0, 1, 2, 3, 4]
    assert [row.length for row in rows] == [3, 2, 1, 3, 2]
    assert made.groups[0].simulator.resets == [[0, 1], [2, 0], [1, 1]]  # type: ignore[attr-defined]


def test_an_episode_is_the_same_whatever_runs_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = worker(monkeypatch, num_envs=1)
    together = worker(monkeypatch, num_envs=4)
    for ours, theirs in zip(episodes(alone, 0, 1, 2), episodes(together, 0, 1, 2), strict=True):
        assert np.array_equal(ours.observations["state"], theirs.observations["state"])
        assert ours.reward == theirs.reward
    first = [seeds[0] for seeds in policy_of(alone).model.seeds[:3]]  # type: ignore[attr-defined]
    assert first == [seeds[0] for seeds in policy_of(together).model.seeds[:3]]  # type: ignore[attr-defined]
    assert len(set(first)) == 3


def test_actions_are_executed_within_the_box_and_recorded_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = episodes(worker(monkeypatch, num_envs=1, push=5.0), 0)
    assert row.length == 3
    assert row.actions.flatten().tolist() == [5.0, 5.0, 5.0]


def test_greedy_reaches_the_policy_and_the_report_counts_recorded_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = worker(monkeypatch, num_envs=2)
    assert episodes(made, 1, greedy=True)[0].truncated
    running = made.rollout(ask(0, 2))
    next(running)
    with pytest.raises(StopIteration) as ended:
        next(running)
    assert ended.value.value.actions == 4


def test_weights_are_taken_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made = worker(monkeypatch)
    assert policy_of(made).version == 7
    with pytest.raises(ModelError, match=r"no weight 'head.weight'; it has weight"):
        policy_of(made).load_weights([WeightBucket(8, {"head.weight": torch.zeros(1)})])
    with pytest.raises(ModelError, match="sent no weight 'weight'"):
        policy_of(made).load_weights([WeightBucket(8, {})])
    assert policy_of(made).version == 7


def test_discrete_actions_get_a_chunk_axis_for_the_simulator_and_none_in_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = worker(monkeypatch, num_envs=2)
    made.groups[0].simulator.action_space = Space(n=2)
    taken: list[Any] = []

    def act(module: Any, observations: Any, seeds: Sequence[int], greedy: bool = False) -> ActionSample:
        return ActionSample(torch.ones(len(seeds), dtype=torch.int64), torch.full((len(seeds),), -0.5))

    def step(actions: Any) -> Transition:
        taken.append(actions)
        return Line.step(made.groups[0].simulator, actions[..., None])  # type: ignore[arg-type]

    monkeypatch.setattr(policy_of(made).model, "act", act)
    monkeypatch.setattr(made.groups[0].simulator, "step", step)
    long, short = episodes(made, 0, 1)
    assert [actions.tolist() for actions in taken] == [[[1], [1]]] * 3
    assert long.actions.tolist() == [1, 1, 1]
    assert short.actions.tolist() == [1, 1]
    assert short.executed is None
    assert short.logprobs.tolist() == [-0.5, -0.5]
