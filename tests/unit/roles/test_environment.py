"""The environment role over a small simulator whose every number can be worked out by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.api import ActionSample, Space, Transition, WeightBucket
from rlinf_core.errors import ModelError, PluginError

sys.path.insert(0, str(Path(__file__).parent))
from line_environments import Line, ask, episodes, policy_of, worker


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


def test_what_follows_a_success_in_its_chunk_is_masked_out_where_the_simulator_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (row,) = episodes(worker(monkeypatch, num_envs=1, chunk=4, sticky=True, limit=20), 1)
    assert row.executed is not None
    assert row.executed.tolist() == [[True, True, False, False]], "it reached 3 with its second action"
    assert row.logprobs.tolist() == [1.0 + 2.0]
    assert (row.reward, row.success, row.truncated) == (2.0 + 3.0, True, False)
    assert row.final_observation is None


def test_at_a_finer_level_every_position_has_its_mask_and_an_actions_last_one_its_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (row,) = episodes(worker(monkeypatch, num_envs=1, chunk=2, finer=True), 0)
    assert row.mask.tolist() == [True] * 4 + [True, True, False, False]
    assert row.logprobs.tolist() == [1, 2, 3, 4, 1, 2, 0, 0]
    assert row.step_rewards is not None
    assert row.step_rewards.tolist() == [0, 1, 0, 2, 0, 3, 0, 0]
    assert (row.reward, row.length) == (6.0, 6)
    assert (len(row.observations["state"]), row.actions.shape) == (2, (2, 2, 1))
    assert row.executed is not None
    assert row.executed.tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("cuts", [True, False], ids=["by the simulator", "by the recorder"])
def test_only_a_row_cut_by_a_time_limit_has_what_was_seen_last_and_not_the_reset(
    monkeypatch: pytest.MonkeyPatch, cuts: bool
) -> None:
    made = worker(monkeypatch, num_envs=3, push=0.5, limit=3, cuts=cuts, chunk=1)
    late, also, success = episodes(made, 0, 1, 2)
    assert (late.truncated, also.truncated, success.truncated) == (True, True, False)
    for row, place in ((late, 1.5), (also, 2.5)):
        assert row.final_observation is not None
        assert row.final_observation["state"].tolist() == [place, 3]
        assert row.final_observation["state"].dtype == np.float32
    assert success.success
    assert success.final_observation is None
    (fallen,) = episodes(worker(monkeypatch, num_envs=1, push=-1.0, limit=3), 0)
    assert (fallen.truncated, fallen.final_observation) == (False, None), "it fell at its time limit"


@pytest.mark.parametrize("sticky", [True, False])
def test_a_success_at_the_time_limit_ends_the_task(monkeypatch: pytest.MonkeyPatch, sticky: bool) -> None:
    (row,) = episodes(worker(monkeypatch, num_envs=1, limit=2, sticky=sticky), 1)
    assert (row.length, row.success, row.truncated, row.finish) == (2, True, False, "stop")
    assert row.final_observation is None


def test_after_an_automatic_reset_an_environment_is_neither_shown_nor_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = worker(monkeypatch, num_envs=2)
    short, long = episodes(made, 2, 0)
    shown = policy_of(made).model.shown  # type: ignore[attr-defined]
    assert shown == [[[2, 0], [0, 0]], [[1, 1]], [[2, 2]]]
    assert short.observations["state"].tolist() == [[2, 0]]
    assert long.observations["state"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_a_simulator_that_cuts_an_episode_without_its_last_observation_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = worker(monkeypatch, num_envs=1, push=0.0, limit=1)
    simulator = made.groups[0].simulator
    step = simulator.step
    monkeypatch.setattr(simulator, "step", lambda actions: replace(step(actions), final_observation=None))
    with pytest.raises(PluginError, match="gave no final_observation"):
        episodes(made, 1)


def test_requests_fill_waves_and_seats_left_over_are_off_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    made = worker(monkeypatch, num_envs=2)
    rows = episodes(made, 0, 1, 2, 0, 1)
    assert [row.group for row in rows] == [0, 1, 2, 3, 4]
    assert [row.length for row in rows] == [3, 2, 1, 3, 2]
    assert made.groups[0].simulator.resets == [[0, 1], [2, 0], [1, 1]]  # type: ignore[attr-defined]


def test_an_environment_that_can_restart_takes_the_next_request_when_its_episode_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Starts 0, 1, 2 take 3, 2 and 1 steps: of two environments, the one that started at 1 is free first."""
    made = worker(monkeypatch, num_envs=2, restarts=True)
    rows = episodes(made, 0, 1, 2, 0, 1)
    assert [row.group for row in rows] == [1, 0, 2, 4, 3]
    assert [row.length for row in rows] == [2, 3, 1, 2, 3]
    assert made.groups[0].simulator.resets == [[0, 1], [2], [0, 1]]  # type: ignore[attr-defined]
    assert policy_of(made).model.shown == [  # type: ignore[attr-defined]
        [[0, 0], [1, 0]],
        [[1, 1], [2, 1]],
        [[2, 2], [2, 0]],
        [[0, 0], [1, 0]],
        [[1, 1], [2, 1]],
        [[2, 2]],
    ]
    waves = worker(monkeypatch, num_envs=2)
    expected = {row.group: row for row in episodes(waves, 0, 1, 2, 0, 1)}
    for row in rows:
        assert row.step_rewards is not None
        assert row.step_rewards.tolist() == expected[row.group].step_rewards.tolist()  # type: ignore[union-attr]
    drawn = [
        sorted(seed for seeds in policy_of(each).model.seeds for seed in seeds) for each in (made, waves)
    ]  # type: ignore[attr-defined]
    assert drawn[0] == drawn[1]


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
    assert policy_of(made).version == -1


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
    assert [actions.tolist() for actions in taken] == [[[1], [1]], [[1], [1]], [[1], [0]]]
    assert long.actions.tolist() == [1, 1, 1]
    assert short.actions.tolist() == [1, 1]
    assert short.executed is None
    assert short.logprobs.tolist() == [-0.5, -0.5]
