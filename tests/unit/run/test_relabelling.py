"""A policy plays, and what the expert would have done in its states is recorded."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlinf_core.plugins import NoConfig
from rlinf_core.run.recording import Recording, Tally, record
from rlinf_core.run.relabelling import Act, Relabelling
from rlinf_core.types import Trajectory

sys.path.insert(0, str(Path(__file__).parent))
from walk import Walk


def back_and_forth(shown: Mapping[str, NDArray[Any]], seeds: Sequence[int]) -> NDArray[np.float32]:
    """Chunks of two actions that lead away from where the expert goes; the first is out of bounds."""
    assert len(seeds) == len(shown["state"])
    return np.tile(np.array([[-0.7], [0.05]], dtype=np.float32), (len(seeds), 1, 1))


def half_way(shown: Mapping[str, NDArray[Any]], seeds: Sequence[int]) -> NDArray[np.float32]:
    """One action, half of what is left: it depends on the row, and arrives."""
    return 0.5 * (1 - shown["state"][:, None])


def played(act: Act | None, share: float = 0.0, envs: int = 4, **more: Any) -> tuple[list[Trajectory], Tally]:
    walk, tally = Walk(NoConfig(), envs, 0), Tally()
    wanted = Recording(**{"episodes": 8, "failures": True} | more)
    relabelling = None if act is None else Relabelling(act, share)
    return list(record(walk, wanted, tally, relabelling)), tally


def states(episode: Trajectory) -> NDArray[np.float32]:
    shown: NDArray[np.float32] = episode.observations["state"][:, 0]
    return shown


def labels(episode: Trajectory) -> NDArray[np.float32]:
    said: NDArray[np.float32] = episode.actions[:, 0, 0]
    return said


def test_states_are_of_the_policy_and_labels_of_the_expert() -> None:
    episodes, tally = played(back_and_forth)
    assert (tally.played, tally.succeeded) == (8, 0)
    for episode in episodes:
        moved = np.diff(states(episode))
        np.testing.assert_allclose(moved, [-0.2, 0.05, -0.2, 0.05, -0.2, 0.05, -0.2, 0.05, -0.2], atol=1e-5)
        np.testing.assert_allclose(labels(episode), np.clip(1 - states(episode), -0.2, 0.2), atol=1e-6)
        assert (labels(episode) > 0.19).all()  # in every state, in the middle of chunks too
    assert {round(float(states(episode)[0]), 3) for episode in episodes} <= {0.5, -0.5, -3.0}


def test_each_row_is_played_by_the_policys_own_answer_to_it() -> None:
    """Some arrive earlier than others; those that are left go on with their own actions."""
    episodes, tally = played(half_way)
    assert len({len(episode.actions) for episode in episodes}) > 1
    assert 0 < tally.succeeded == sum(episode.success for episode in episodes) < 8
    for episode in episodes:
        expected = np.clip(0.5 * (1 - states(episode)), -0.2, 0.2)
        np.testing.assert_allclose(np.diff(states(episode)), expected[:-1], atol=1e-5)
        np.testing.assert_allclose(labels(episode), np.clip(1 - states(episode), -0.2, 0.2), atol=1e-6)


def test_an_expert_with_every_share_plays_as_alone() -> None:
    alone, mixed = played(None)[0], played(back_and_forth, share=1.0)[0]
    for one, other in zip(alone, mixed, strict=True):
        np.testing.assert_array_equal(states(one), states(other))
        np.testing.assert_array_equal(labels(one), labels(other))


def test_the_expert_takes_whole_decisions_of_its_share() -> None:
    episodes, _ = played(back_and_forth, share=0.25, episodes=120)
    by_expert = []
    for episode in episodes:
        where = states(episode)
        moved = np.diff(where)
        ours = [bool(np.isclose(move, [-0.2, 0.05], atol=1e-4).any()) for move in moved]
        whole = list(zip(ours[::2], ours[1::2], strict=False))
        assert all(one == other for one, other in whole)
        by_expert += [not one for one, _ in whole]
        said = np.clip(1 - where[:-1], -0.2, 0.2)
        np.testing.assert_allclose(moved[~np.array(ours)], said[~np.array(ours)], atol=1e-4)
    share, sigma = np.mean(by_expert), (0.25 * 0.75 / len(by_expert)) ** 0.5
    assert len(by_expert) > 300
    assert abs(share - 0.25) < 4 * sigma


def test_who_decides_follows_from_the_seed_and_not_from_how_many_play_at_once() -> None:
    one, four = (played(back_and_forth, share=0.5, envs=envs, seed=3)[0] for envs in (1, 4))
    other = played(back_and_forth, share=0.5, seed=4)[0]
    for first, second in zip(one, four, strict=True):
        np.testing.assert_array_equal(states(first), states(second))
    paths = {tuple(np.diff(states(episode)).round(3).tolist()) for episode in one}
    assert len(paths) > 4  # an episode has its own draws
    assert [states(each).tolist() for each in one] != [states(each).tolist() for each in other]


def test_noise_and_speed_are_there_as_without_a_policy() -> None:
    episodes, _ = played(back_and_forth, noise=0.5, speed=(0.5, 0.5), episodes=4)
    for episode in episodes:
        np.testing.assert_allclose(labels(episode), np.clip(1 - states(episode), -0.2, 0.2) / 2, atol=1e-6)
    moves = np.concatenate([np.diff(states(episode)) for episode in episodes])
    assert not np.isclose(moves, 0.05, atol=1e-3).all()
    assert np.abs(moves).max() <= 0.2 + 1e-5


def test_added_episodes_start_from_seeds_of_their_own() -> None:
    seeds = [{each.seed for each in played(half_way, after=after)[0]} for after in (0, 8, 16)]
    assert all(one.isdisjoint(other) for one, other in pairwise([*seeds, seeds[0]]))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_policy_is_asked_once_a_decision_about_running_episodes(share: float) -> None:
    asked: list[int] = []

    def act(shown: Mapping[str, NDArray[Any]], seeds: Sequence[int]) -> NDArray[np.float32]:
        asked.append(len(seeds))
        assert len(set(seeds)) == len(seeds)
        return back_and_forth(shown, seeds)

    episodes, _ = played(act, share=share, episodes=4)
    lengths = [len(episode.actions) for episode in episodes]
    assert asked == [sum(length > at for length in lengths) for at in range(0, max(lengths), 2)]
