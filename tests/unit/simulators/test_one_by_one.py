"""Chunks, ends, time limits and new starts of environments that are stepped in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlinf_core.api import Observation, Space
from rlinf_core.simulators import OneByOne


class Counter(OneByOne):
    """Begins at its seed modulo 100 and adds up actions: 10 and more is a success, -10 and less a failure."""

    max_episode_steps = 4
    action_space = Space(shape=(1,), low=-20, high=20)

    def __init__(self, num_envs: int) -> None:
        super().__init__(None, num_envs, 0)
        self.counts_N = np.zeros(num_envs, dtype=np.float32)
        self.settled: list[int] = []
        self.shown: list[list[int]] = []

    def _start(self, n: int, seed: int) -> None:
        self.counts_N[n] = seed % 100

    def _act(self, n: int, action: Any) -> tuple[float, bool, bool]:
        self.counts_N[n] += action[0]
        success = bool(self.counts_N[n] >= 10)
        return float(self._steps_N[n]), success, success or bool(self.counts_N[n] <= -10)

    def _settle(self, n: int) -> None:
        self.settled.append(n)

    def _observation(self, changed: Sequence[int]) -> Observation:
        self.shown.append(list(changed))
        return Observation(self.counts_N[:, None].copy())


def chunk(*rows: Sequence[float]) -> np.ndarray[Any, Any]:
    return np.array(rows, dtype=np.float32)[..., None]


def test_a_chunk_is_executed_up_to_a_success_a_failure_or_the_time_limit() -> None:
    counter = Counter(3)
    counter.auto_reset = False
    counter.reset([0, 1, 2])
    outcome = counter.step(chunk([5, 5, 5, 5, 5], [-11, 1, 1, 1, 1], [1, 1, 1, 1, 1]))
    assert outcome.executed_NC.sum(1).tolist() == [2, 1, 4]
    assert outcome.rewards_NC.tolist() == [[1, 2, 0, 0, 0], [1, 0, 0, 0, 0], [1, 2, 3, 4, 0]]
    assert [np.flatnonzero(row).tolist() for row in outcome.terminated_NC] == [[1], [0], []]
    assert [np.flatnonzero(row).tolist() for row in outcome.truncated_NC] == [[], [], [3]]
    assert outcome.success_N.tolist() == [True, False, False]
    assert outcome.observation is outcome.final_observation
    assert counter.settled == [0, 1, 2]
    assert not counter.step(chunk([1], [1], [1])).executed_NC.any()
    assert counter.shown == [[0, 1, 2], [0, 1, 2], []]


def test_a_success_at_the_time_limit_is_no_truncation() -> None:
    counter = Counter(1)
    counter.reset([0])
    outcome = counter.step(chunk([1, 1, 1, 7]))
    assert outcome.terminated_NC[0].tolist() == [False, False, False, True]
    assert not outcome.truncated_NC.any()


def test_what_ended_starts_again_from_a_seed_that_follows_from_its_own() -> None:
    counter, other = Counter(2), Counter(1)
    counter.reset([7, 0])
    other.reset([7])
    outcome, alone = counter.step(chunk([5], [1])), other.step(chunk([5]))
    assert outcome.final_observation is not None
    assert outcome.final_observation.state.tolist() == [[12.0], [1.0]]
    began = int(np.random.default_rng(7).integers(1 << 62)) % 100
    assert outcome.observation.state.tolist() == [[began], [1.0]]
    assert alone.observation.state.tolist() == [[began]]
    assert counter.step(chunk([0], [0])).rewards_NC.ravel().tolist() == [1, 2]


@pytest.mark.parametrize("n", [0, 1])
def test_a_restart_leaves_the_others_as_they_are(n: int) -> None:
    counter = Counter(2)
    counter.reset([3, 4])
    counter.step(chunk([1], [1]))
    expected = [[4.0], [5.0]]
    expected[n] = [9.0]
    assert counter.restart({n: 109}).state.tolist() == expected
    assert counter.shown[-1] == [n]
