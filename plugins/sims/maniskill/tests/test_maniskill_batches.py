"""Environments of one batch keep to their own episodes, though all of a batch are stepped together."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rlinf_sim_maniskill import simulator as module
from rlinf_sim_maniskill.config import ManiSkillConfig
from rlinf_sim_maniskill.simulator import ManiSkillSimulator

from rlinf_core.api import Space

LIMIT = 6


class Line:
    """Stands for a batch on a GPU: places on a line that start at their seed and move by the action; 10 is
    the goal. Every one moves at every step."""

    actions = SimpleNamespace(space=Space(shape=(1,)))

    def __init__(self, count: int) -> None:
        self.count = count
        self.at = np.zeros(count, dtype=np.float32)
        self.looks = 0

    def start(self, seeds: Mapping[int, int]) -> None:
        for n, seed in seeds.items():
            self.at[n] = seed

    def act(self, actions_NA: Any, look: bool) -> Any:
        self.at = self.at + actions_NA[:, 0]
        success = self.at >= 10
        paid = np.where(self.at > 90, np.nan, self.at).astype(np.float32)
        sound = np.isfinite(paid)
        return SimpleNamespace(rewards_N=paid, success_N=success, failure_N=self.at < 0, sound_N=sound)

    def look(self) -> Any:
        self.looks += 1
        return self.at[:, None].copy(), {}

    def instruction(self) -> None:
        return None


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulator of three environments in one batch, and the batch."""

    def make(**options: Any) -> tuple[ManiSkillSimulator, Line]:
        line = Line(3)
        monkeypatch.setattr(module, "find", lambda config: SimpleNamespace(max_episode_steps=LIMIT))
        monkeypatch.setattr(ManiSkillSimulator, "_choose_device", lambda self: True)
        monkeypatch.setattr(ManiSkillSimulator, "_world", lambda self, count, by: line)
        return ManiSkillSimulator(ManiSkillConfig("Line-v1", **options), 3, 0), line

    return make


def chunk(*rows: list[float]) -> Any:
    return np.array(rows, dtype=np.float32)[..., None]


def test_what_follows_the_end_of_an_episode_in_a_chunk_is_not_kept(batch: Any) -> None:
    ours, line = batch()
    ours.auto_reset = False
    ours.reset([8, 1, 0])
    outcome = ours.step(chunk([1, 1, 1, 1], [1, 1, 1, 1], [1, -2, 5, 5]))
    assert outcome.executed_NC.tolist() == [
        [True, True, False, False],
        [True] * 4,
        [True, True, False, False],
    ]
    assert outcome.terminated_NC.tolist() == [
        [False, True, False, False],
        [False] * 4,
        [False, True, False, False],
    ]
    assert outcome.rewards_NC.tolist() == [[9, 10, 0, 0], [2, 3, 4, 5], [1, -1, 0, 0]]
    assert outcome.success_N.tolist() == [True, False, False]
    assert not outcome.truncated_NC.any()
    assert outcome.final_observation.state[:, 0].tolist() == [10, 5, -1]
    assert line.at.tolist() == [12, 5, 9]  # the batch itself went on


def test_those_that_rest_are_left_out_until_they_are_started_by_their_own_seed(batch: Any) -> None:
    ours, _ = batch()
    ours.auto_reset = False
    ours.reset([9, 1, 1])
    ours.step(chunk([1], [1], [1]))
    assert ours.restart({2: 4}).state[:, 0].tolist() == [10, 2, 4]
    outcome = ours.step(chunk([1, 1], [1, 1], [1, 1]))
    assert outcome.executed_NC.any(axis=1).tolist() == [False, True, True]
    assert outcome.observation.state[:, 0].tolist() == [10, 4, 6]
    assert ours.restart({0: 3}).state[:, 0].tolist() == [3, 4, 6]
    outcome = ours.step(chunk([0] * 4, [0] * 4, [0] * 4))
    assert outcome.truncated_NC.tolist() == [[False] * 4, [False, False, True, False], [False] * 3 + [True]]


def test_an_ended_episode_is_followed_by_one_of_a_seed_that_its_own_decides(batch: Any) -> None:
    first, second = batch()[0], batch()[0]
    begun = []
    for ours in (first, second):
        ours.reset([9, 2, 3] if ours is first else [9, 5, 1])
        begun.append(ours.step(chunk([1], [0], [0])).observation.state[:, 0])
    assert begun[0][0] == begun[1][0] != 10
    assert begun[0][1:].tolist() == [2, 3]


def test_success_is_told_by_action_where_ends_are_ignored(batch: Any) -> None:
    ours, _ = batch(ignore_terminations=True)
    ours.auto_reset = False
    ours.reset([8, 1, 0])
    outcome = ours.step(chunk([1, 1, -5, 0, 0, 0, 0], [0] * 7, [-1] * 7))
    assert outcome.success_NC.tolist() == [[False, True] + [False] * 5, [False] * 7, [False] * 7]
    assert outcome.success_N.tolist() == [True, False, False]
    assert not outcome.terminated_NC.any()
    assert outcome.truncated_NC.argmax(axis=1).tolist() == [LIMIT - 1] * 3


def test_a_reward_that_is_no_number_ends_the_episode_with_nothing_paid(
    batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ours, _ = batch(ignore_terminations=True)
    ours.auto_reset = False
    ours.reset([8, 1, 0])
    outcome = ours.step(chunk([0, 0], [95, 0], [0, 0]))
    assert outcome.terminated_NC.tolist() == [[False, False], [True, False], [False, False]]
    assert outcome.rewards_NC.tolist() == [[8, 8], [0, 0], [0, 0]]
    assert "became unstable" in caplog.text


def test_a_chunk_is_looked_at_once_unless_an_episode_ends_in_it(batch: Any) -> None:
    ours, line = batch()
    ours.reset([1, 1, 1])
    before = line.looks
    ours.step(chunk([0] * 4, [0] * 4, [0] * 4))
    assert line.looks == before + 1
