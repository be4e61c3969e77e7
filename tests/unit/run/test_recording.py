"""What an expert plays becomes demonstrations: clean actions, noisy motion, successes only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.errors import ConfigError, DataError
from rlinf_core.plugins import NoConfig
from rlinf_core.run.recording import Recording, Tally, record

sys.path.insert(0, str(Path(__file__).parent))
from walk import Walk


def recorded(wanted: Recording, **options: Any) -> tuple[list[Any], Tally, Walk]:
    walk, tally = Walk(NoConfig(), options.pop("envs", 4), 0), Tally()
    walk.starts = options.pop("starts", walk.starts)
    return list(record(walk, wanted, tally)), tally, walk


def test_only_successes_are_kept_one_action_a_decision() -> None:
    episodes, tally, _ = recorded(Recording(episodes=6))
    assert len(episodes) == 6
    assert tally.played > tally.succeeded >= 6
    assert all(episode.success and episode.actions.shape[1:] == (1, 1) for episode in episodes)
    assert {len(episode.actions): episode.observations["state"][0, 0] for episode in episodes} == {
        2: np.float32(0.5),
        7: np.float32(-0.5),
    }
    assert all(len(episode.step_rewards) == len(episode.actions) for episode in episodes)
    failed, tally, _ = recorded(Recording(episodes=12, failures=True))
    assert tally.played == 12
    assert sorted({episode.success for episode in failed}) == [False, True]


def test_what_is_recorded_does_not_depend_on_how_many_play_at_once() -> None:
    wanted = Recording(episodes=5, noise=0.3, speed=(0.5, 1.0), seed=3)
    one, two = (recorded(wanted, envs=envs)[0] for envs in (1, 4))
    for first, second in zip(one, two, strict=True):
        np.testing.assert_array_equal(first.actions, second.actions)
        np.testing.assert_array_equal(first.observations["state"], second.observations["state"])


def test_noise_moves_the_robot_and_not_the_record() -> None:
    (episode,), _, walk = recorded(Recording(episodes=1, noise=0.5), envs=1, starts=(-0.5,))
    states, actions = episode.observations["state"][:, 0], episode.actions[:, 0, 0]
    np.testing.assert_allclose(actions, np.clip(1 - states, -0.2, 0.2), atol=1e-6)
    executed = np.concatenate(walk.executed)
    np.testing.assert_allclose(np.diff(states), executed[:-1], atol=1e-6)
    assert (np.abs(executed - actions) > 1e-3).any()
    assert np.abs(executed).max() <= 0.2 + 1e-6


def test_each_episode_has_a_speed_of_its_own() -> None:
    episodes, _, _ = recorded(Recording(episodes=12, speed=(0.6, 0.9)), starts=(-0.2,))
    speeds = [float(episode.actions[0, 0, 0]) / 0.2 for episode in episodes]
    assert all(0.6 <= speed <= 0.9 for speed in speeds)
    assert len(set(speeds)) == 12


def test_an_expert_that_never_succeeds_is_told_with_what_helps() -> None:
    with pytest.raises(DataError, match=r"succeeded in 0 of \d+ episodes, too few for 2; less --noise"):
        recorded(Recording(episodes=2), starts=(-9.0,))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"episodes": 0}, "--episodes: 0"),
        ({"speed": (0.9, 0.1)}, "--speed: 0.9 0.1: two shares of full speed, the lower one first"),
        ({"speed": (0.0, 1.0)}, "--speed: 0 1"),
        ({"noise": -0.1}, "--noise: -0.1: must be 0 or more"),
    ],
)
def test_what_cannot_be_recorded_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Recording(**options)
