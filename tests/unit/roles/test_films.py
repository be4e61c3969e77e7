"""Filmed episodes: every action is seen once, and nothing else about them is different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.api import ActionSample, Observation, Simulator, Space, Transition
from rlinf_core.plugins import NoConfig
from rlinf_core.roles.env_group import EnvironmentReport, Group, Requests, Rollout
from rlinf_core.roles.films import FACTS, FRAMES, Film, merged
from rlinf_core.roles.policy import Answer, Question
from rlinf_core.types import EpisodeRequest, Trajectory


class Track(Simulator):
    """A runner on a track of 8 places, who starts at `seed % 3`. A picture is white up to the runner. Each
    step pays its number; place 5 is the goal, where the episode ends, or, if `sticky`, goes on."""

    action_space = Space(shape=(1,), low=-1.0, high=1.0)
    observation_space: Mapping[str, Space] = {"state": Space(shape=(1,))}
    max_episode_steps = 4
    restarts = True
    sticky = False

    def __init__(self, num_envs: int) -> None:
        super().__init__(NoConfig(), num_envs, 0)
        self.places = np.zeros(num_envs, dtype=np.int64)
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self.running = np.zeros(num_envs, dtype=bool)
        self.drawn: list[list[int]] = []
        self.lengths: list[int] = []

    def reset(self, seeds: Sequence[int]) -> Observation:
        return self.restart(dict(enumerate(seeds)))

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        for n, seed in seeds.items():
            self.places[n], self.steps[n], self.running[n] = seed % 3, 0, True
        return self._shown()

    def step(self, actions: Any) -> Transition:
        self.lengths.append(actions.shape[1])
        shape = actions.shape[:2]
        rewards = np.zeros(shape, dtype=np.float32)
        terminated, truncated, executed, success = (np.zeros(shape, dtype=bool) for _ in range(4))
        for n, c in np.ndindex(shape):
            if self.running[n]:
                self.places[n] += int(actions[n, c, 0])
                self.steps[n] += 1
                executed[n, c], rewards[n, c] = True, self.steps[n]
                success[n, c] = self.places[n] >= 5
                terminated[n, c] = success[n, c] and not self.sticky
                truncated[n, c] = self.steps[n] >= 4 and not terminated[n, c]
                self.running[n] = not (terminated[n, c] or truncated[n, c])
        final = self._shown()
        if not self.restarts and self.auto_reset:
            self.restart(dict.fromkeys(np.flatnonzero(~self.running).tolist(), 0))
        ended, by_action = np.logical_or.reduce(success, axis=1), success if self.sticky else None
        return Transition(self._shown(), rewards, terminated, truncated, executed, ended, final, by_action)

    def render(self) -> Any:
        return self.render_some(range(self.num_envs))

    def render_some(self, envs: Sequence[int]) -> Any:
        self.drawn.append(list(envs))
        pictures = np.zeros((len(envs), 2, 8, 3), dtype=np.uint8)
        for picture, n in zip(pictures, envs, strict=True):
            picture[:, : self.places[n] + 1] = 255
        return pictures

    def _shown(self) -> Observation:
        return Observation(state=self.places[:, None].astype(np.float32))


class Onwards:
    """A policy that always goes on by one place, `chunk` times a decision."""

    prompt = True

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.rows = 0

    def ask(self, question: Question) -> None:
        self.rows = len(question.seeds)

    def answer(self, asker: tuple[int, int]) -> Answer:
        actions = torch.ones(self.rows, self.chunk, 1)
        each = torch.ones(self.rows, self.chunk)
        return Answer(ActionSample(actions, each.sum(1), logprobs_NC=each), 3)

    def goodbye(self, asker: tuple[int, int]) -> None:
        """Nothing waits."""


def play(simulator: Track, chunk: int, films: Sequence[str], starts: Sequence[int]) -> list[Trajectory]:
    """Episodes from these places, each filmed where there is a name for it."""
    asked = [
        [EpisodeRequest(group, 0, start, 0, film)]
        for group, (start, film) in enumerate(zip(starts, films, strict=True))
    ]
    rollout = Rollout(Requests(iter(asked)), Onwards(chunk), False, EnvironmentReport())
    group = Group(simulator, (0, 0))
    rows: list[Trajectory] = []
    while group.state != "done" or group.start(rollout):
        rows += group.turn(rollout)
    return rows


def widths(frames: Any) -> list[int]:
    """Up to which place pictures are white."""
    return [int((frame[0, :, 0] > 0).sum()) - 1 for frame in frames]


def load(path: Path) -> dict[str, Any]:
    with np.load(str(path) + FACTS) as stored:
        film = {name: stored[name] for name in stored.files}
    raw = np.fromfile(str(path) + FRAMES, dtype=np.uint8)
    return film | {"frames": raw.reshape(-1, *film["shape"][1:])[: film["shape"][0]]}


def test_a_film_has_the_start_and_every_action_of_its_episode_alone(tmp_path: Path) -> None:
    track = Track(2)
    play(track, 1, [str(tmp_path / "a"), "", str(tmp_path / "b")], [0, 2, 2])
    late, success = load(tmp_path / "a"), load(tmp_path / "b")
    assert widths(late["frames"]) == [0, 1, 2, 3, 4]
    assert late["rewards"].tolist() == [0, 1, 2, 3, 4]
    assert late["decisions"].tolist() == [0, 1, 2, 3, 3]
    assert (str(late["ended"]), str(success["ended"])) == ("time limit", "success")
    assert widths(success["frames"]) == [2, 3, 4, 5]
    assert success["row"].tolist() == [2, 0]
    assert {n for drawn in track.drawn for n in drawn} == {0, 1}, "the third starts where the second was"
    assert max(map(len, track.drawn)) == 2


def test_actions_of_a_chunk_are_seen_one_by_one_up_to_the_end(tmp_path: Path) -> None:
    play(Track(1), 3, [str(tmp_path / "a")], [1])
    film = load(tmp_path / "a")
    assert widths(film["frames"]) == [1, 2, 3, 4, 5]
    assert film["decisions"].tolist() == [0, 0, 0, 1, 1]
    assert str(film["ended"]) == "success"


def test_a_film_ends_with_the_first_success_though_the_simulator_goes_on(tmp_path: Path) -> None:
    track = Track(1)
    track.sticky = True
    play(track, 4, [str(tmp_path / "a")], [2])
    assert widths(load(tmp_path / "a")["frames"]) == [2, 3, 4, 5]


def test_what_is_seen_after_an_automatic_reset_is_not_in_the_film(tmp_path: Path) -> None:
    track = Track(1)
    track.restarts = False
    play(track, 2, [str(tmp_path / "a")], [0])
    assert widths(load(tmp_path / "a")["frames"]) == [0, 2]
    assert track.lengths == [2, 2], "it cannot rest inside of a chunk"


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("sticky", [False, True])
def test_filmed_episodes_are_the_same_as_others(tmp_path: Path, chunk: int, sticky: bool) -> None:
    starts, tracks = [0, 1, 2, 1], [Track(3), Track(3)]
    for track in tracks:
        track.sticky = sticky
    plain = play(tracks[0], chunk, [""] * 4, starts)
    filmed = play(tracks[1], chunk, [str(tmp_path / f"{i}") for i in range(4)], starts)
    assert tracks[0].drawn == []
    for expected, found in zip(plain, filmed, strict=True):
        assert (found.success, found.truncated, found.reward) == (
            expected.success,
            expected.truncated,
            expected.reward,
        )
        for name in ("actions", "mask", "logprobs", "step_rewards", "executed"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        for before, after in ((expected.final_observation, found.final_observation),):
            assert (before is None) == (after is None)
            if before is not None and after is not None:
                np.testing.assert_array_equal(before["state"], after["state"])


def test_a_frame_of_another_size_is_black_and_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    film = Film(EpisodeRequest(0, 0, 0, 0, str(tmp_path / "a")))
    for frame in (np.full((2, 4, 3), 7), np.zeros((64, 64, 3)), np.full((2, 4, 3), 9)):
        film.add(frame.astype(np.uint8), 0.0, 1)
    frames = np.fromfile(str(tmp_path / "a") + FRAMES, dtype=np.uint8).reshape(3, 2, 4, 3)
    assert frames[:, 0, 0, 0].tolist() == [7, 0, 9]


def test_the_parts_of_a_chunk_make_its_transition() -> None:
    track, parts = Track(2), []
    whole = Track(2)
    for each in (track, whole):
        each.auto_reset = False
        each.reset([2, 0])
    actions = np.ones((2, 4, 1), dtype=np.float32)
    for c in range(4):
        parts.append(track.step(actions[:, c : c + 1]))
    parts[1] = replace(parts[1], lost_N=np.array([False, True]))
    found, expected = merged(parts), whole.step(actions)
    for name in ("rewards_NC", "terminated_NC", "truncated_NC", "executed_NC", "success_N"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.success_N.tolist() == [True, False]
    assert found.final_observation is not None
    np.testing.assert_array_equal(found.final_observation.state, [[5], [4]])
    assert found.lost_N is not None
    assert found.lost_N.tolist() == [False, True]
