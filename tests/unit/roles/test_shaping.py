"""What actions pay in training, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.api import ActionSample, Observation, Transition
from rlinf_core.roles.episodes import Seats
from rlinf_core.roles.shaping import RewardShaping, Shaping
from rlinf_core.types import EpisodeRequest, Trajectory

SHOWN = {"state": np.zeros((1, 1), dtype=np.float32)}


def decision(rewards: list[float], executed: int, *, success: bool = False, late: bool = False) -> Transition:
    """Of one environment: the chunk's first `executed` actions are executed."""
    done_1C = np.arange(len(rewards))[None] < executed
    last_1C = np.arange(len(rewards))[None] == executed - 1
    return Transition(
        Observation(state=SHOWN["state"]),
        rewards_NC=np.array([rewards], dtype=np.float32),
        terminated_NC=last_1C & success,
        truncated_NC=last_1C & late,
        executed_NC=done_1C,
        success_N=np.array([success]),
        final_observation=Observation(state=SHOWN["state"]),
    )


def episode(kind: RewardShaping, decisions: list[Transition], level: str = "chunk") -> Trajectory:
    seats = Seats(1, 20, kind)
    seats.seat(0, EpisodeRequest(group=0, replica=0, initial_state=0, seed=1))
    for each in decisions:
        chunk = each.rewards_NC.shape[1]
        finer: Any = {"logprobs_NK": torch.zeros(1, chunk)} if level == "action" else {}
        ended = seats.add(SHOWN, ActionSample(torch.zeros(1, chunk, 1), torch.zeros(1), **finer), each, 0)
    return ended[0]


PLAYED = [decision([0.5, 0.25], 2), decision([1.0, 2.0], 2), decision([4.0, 9.0], 1, success=True)]


@pytest.mark.parametrize(
    ("kind", "chunks", "actions"),
    [
        ("none", [0.75, 3.0, 4.0], [0.5, 0.25, 1, 2, 4, 0]),
        ("success", [0, 0, 1], [0, 0, 0, 0, 1, 0]),
        ("relative", [0.25, 1.75, 2.0], [0.5, -0.25, 0.75, 1, 2, 0]),
    ],
)
def test_each_way_of_paying_by_chunk_and_by_action(
    kind: RewardShaping, chunks: list[float], actions: list[float]
) -> None:
    for level, expected in (("chunk", chunks), ("action", actions)):
        row = episode(kind, PLAYED, level)
        assert row.step_rewards is not None
        assert row.step_rewards.tolist() == expected
        assert row.reward == sum(expected)
        assert row.success


def test_without_a_success_nothing_is_paid_and_relative_rewards_add_up_to_the_last() -> None:
    late = [decision([0.5, 0.25], 2), decision([1.0, 2.5], 2, late=True)]
    assert episode("success", late).reward == 0.0
    assert episode("relative", late).reward == 2.5
    assert episode("relative", late).truncated


def test_the_next_episode_of_an_environment_starts_from_nothing_and_others_are_left_alone() -> None:
    shaping, yes, no = Shaping("relative", 3), np.ones((2, 1), dtype=bool), np.zeros(2, dtype=bool)
    at = np.array([0, 2])
    first = shaping.paid(at, np.array([[3.0], [5.0]], dtype=np.float32), yes, no)
    assert first.tolist() == [[3.0], [5.0]]
    shaping.begin(2)
    then = shaping.paid(at, np.array([[4.0], [7.0]], dtype=np.float32), yes, no)
    assert then.tolist() == [[1.0], [7.0]]
    rested = shaping.paid(at, np.array([[9.0], [9.0]], dtype=np.float32), ~yes, no)
    assert rested.tolist() == [[0.0], [0.0]]
    after = shaping.paid(at, np.array([[5.0], [8.0]], dtype=np.float32), yes, no)
    assert after.tolist() == [[1.0], [1.0]], "what was not executed paid nothing to start from"
