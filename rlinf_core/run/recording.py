"""Records demonstrations: episodes that a simulator's own expert plays, or a policy under its eyes.

Axes: N environments, R environments whose episode runs, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_core.api import ActionSample
from rlinf_core.errors import ConfigError, DataError
from rlinf_core.roles.episodes import Seats, observation_arrays
from rlinf_core.run.relabelling import Player
from rlinf_core.run.seeds import derive_seed
from rlinf_core.run.source import MOST_STATES
from rlinf_core.types import EpisodeRequest

if TYPE_CHECKING:
    from rlinf_core.api import Observation, Simulator
    from rlinf_core.run.relabelling import Relabelling
    from rlinf_core.types import Trajectory

PATIENCE = 20  # episodes played for one that is kept, at most


@dataclass(frozen=True)
class Recording:
    """What is recorded."""

    episodes: int = 50
    speed: tuple[float, float] = (1.0, 1.0)  # each episode has one between the two
    noise: float = 0.0  # deviation of what is executed from what is recorded, in half action ranges
    failures: bool = False  # keep them too
    seed: int = 0
    after: int = 0  # episodes that are there already: these start elsewhere

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ConfigError(f"--episodes: {self.episodes}: must be 1 or more")
        low, high = self.speed
        if not 0.0 < low <= high <= 1.0:
            raise ConfigError(f"--speed: {low:g} {high:g}: two shares of full speed, the lower one first")
        if self.noise < 0.0:
            raise ConfigError(f"--noise: {self.noise:g}: must be 0 or more")


@dataclass
class Tally:
    """How many episodes were played, and how many of them succeeded."""

    played: int = 0
    succeeded: int = 0


def record(
    simulator: Simulator, wanted: Recording, tally: Tally, relabelling: Relabelling | None = None
) -> Iterator[Trajectory]:
    """Episodes in the order of their seeds, each of one action a decision.

    What the expert says is recorded, wherever its noise, or the policy of `relabelling`, has led: a policy
    that imitates it learns to come back. Raises `DataError` if too few episodes succeed.
    """
    simulator.auto_reset = not simulator.restarts
    kept = first = 0
    while kept < wanted.episodes:
        if first >= PATIENCE * wanted.episodes + simulator.num_envs:
            raise DataError(
                f"the expert succeeded in {tally.succeeded} of {tally.played} episodes, too few for "
                f"{wanted.episodes}; less --noise, a higher --speed or a longer simulator.max_episode_steps "
                "make it better, or --failures keeps every episode"
            )
        for episode in _play(simulator, wanted, first, relabelling):
            tally.played += 1
            tally.succeeded += episode.success
            if (episode.success or wanted.failures) and kept < wanted.episodes:
                kept += 1
                yield episode
        first += simulator.num_envs


def _play(
    simulator: Simulator, wanted: Recording, first: int, relabelling: Relabelling | None
) -> list[Trajectory]:
    """One episode in every environment."""
    count = simulator.num_envs
    seats = Seats(count, simulator.max_episode_steps)
    later = [wanted.after] if wanted.after else []
    seeds = [derive_seed(wanted.seed, "demonstrations", *later, first + n) for n in range(count)]
    player = None if relabelling is None else Player(relabelling, simulator, seeds)
    random = [np.random.default_rng(seed) for seed in seeds]
    speed_N = [float(each.uniform(*wanted.speed)) for each in random]
    observation = simulator.reset([seed % MOST_STATES for seed in seeds])
    for n, seed in enumerate(seeds):
        seats.seat(n, EpisodeRequest(group=first + n, replica=0, initial_state=seed % MOST_STATES, seed=seed))
    episodes: list[Trajectory] = []
    while seats.running_N.any():
        actions_NA = np.asarray(simulator.expert(speed_N), dtype=np.float32)
        sample, shown = _recorded(seats, actions_NA, observation)
        if player is not None:
            actions_NA = player.executed(actions_NA, shown, seats)
        outcome = simulator.step(_executed(simulator, actions_NA, random, wanted.noise)[:, None])
        observation = outcome.observation
        episodes += seats.add(shown, sample, outcome, version=-1)
    return sorted(episodes, key=lambda episode: episode.group)


def _recorded(
    seats: Seats, actions_NA: NDArray[np.float32], observation: Observation
) -> tuple[ActionSample, dict[str, NDArray[np.generic]]]:
    at = np.flatnonzero(seats.running_N)
    actions = torch.from_numpy(actions_NA[at][:, None])
    return ActionSample(actions, torch.zeros(len(at))), observation_arrays(observation, at)


def _executed(
    simulator: Simulator, actions_NA: NDArray[np.float32], random: list[np.random.Generator], noise: float
) -> NDArray[np.float32]:
    if not noise:
        return actions_NA
    space = simulator.action_space
    half = (space.high - space.low) / 2 if np.isfinite([space.low, space.high]).all() else 1.0
    drawn_NA = np.stack([each.standard_normal(actions_NA.shape[1]) for each in random])
    return np.clip(actions_NA + noise * half * drawn_NA, space.low, space.high).astype(np.float32)
