"""Recorded episodes as decisions to imitate.

Axes: M recorded actions of all episodes, N decisions of a batch, C actions of a chunk, K positions of a
decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_core.demos.lerobot import read_dataset
from rlinf_core.errors import DataError
from rlinf_core.roles.episodes import positions
from rlinf_core.types import Trajectory

if TYPE_CHECKING:
    from rlinf_core.api import Model
    from rlinf_core.roles.setup import Spaces

_SEEDS = 1 << 62
_MEND = "record with the simulator's settings of this run"


class Demonstrations:
    """Decisions of recorded episodes. Each recorded action begins one: what was seen before it, and the chunk
    of actions from it on, cut at the end of its episode. Every epoch is a new permutation of them."""

    def __init__(self, episodes: Sequence[Trajectory], model: Model, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)
        lengths = [len(episode.actions) for episode in episodes]
        self.count = sum(lengths)
        self._ends_M = np.repeat(np.cumsum(lengths), lengths)
        names = episodes[0].observations
        self._shown = {name: np.concatenate([each.observations[name] for each in episodes]) for name in names}
        self._actions = np.concatenate([each.actions for each in episodes])

    @classmethod
    def load(cls, folder: str, model: Model, spaces: Spaces, seed: int) -> Demonstrations:
        """Raises `DataError` if the folder holds no episodes, or such of another simulator."""
        episodes = read_dataset(Path(folder))
        check_fit(folder, episodes, spaces)
        return cls(episodes, model, seed)

    def batch(self, step: int, size: int) -> list[Trajectory]:
        """Rows of one decision each: the `size` decisions of this step."""
        at_N = np.array([self._at(position) for position in range(step * size, (step + 1) * size)])
        actions, executed_NC = self._chunks(at_N)
        sample = self._model.label(torch.from_numpy(actions), [self._draw(step, n) for n in range(size)])
        shown = {name: column[at_N] for name, column in self._shown.items()}
        of_positions = positions(sample, executed_NC, np.zeros(executed_NC.shape, dtype=np.float32))
        latents = None if sample.latents is None else sample.latents.numpy()
        return [
            Trajectory(
                group=n,
                replica=0,
                seed=0,
                mask=of_positions["mask"][n],
                logprobs=of_positions["logprobs"][n],
                weight_version=-1,
                observations={name: column[n : n + 1] for name, column in shown.items()},
                actions=actions[n : n + 1],
                executed=executed_NC[n : n + 1] if actions.ndim > 1 else None,
                latents=None if latents is None else latents[n : n + 1],
            )
            for n in range(size)
        ]

    def _chunks(self, at_N: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The actions of decisions, `[N, C, A]` or `[N]`, and which of them were recorded."""
        places_NC = at_N[:, None] + np.arange(self._model.chunk)
        executed_NC = places_NC < self._ends_M[at_N][:, None]
        if self._actions.ndim == 1:
            return self._actions[at_N], executed_NC
        chosen = self._actions[np.minimum(places_NC, self._ends_M[at_N][:, None] - 1), 0]
        return chosen, executed_NC

    def _at(self, position: int) -> int:
        epoch, offset = divmod(position, self.count)
        if epoch != self._epoch:
            self._order = np.random.default_rng((self._seed, epoch)).permutation(self.count)
            self._epoch = epoch
        return int(self._order[offset])

    def _draw(self, step: int, n: int) -> int:
        return int(np.random.default_rng((self._seed, step, n)).integers(_SEEDS))


def check_fit(folder: str, episodes: Sequence[Trajectory], spaces: Spaces) -> None:
    """Raise `DataError` unless the episodes show and do what the simulator shows and takes."""
    first, where, action = episodes[0], f"warm_start.demonstrations: {folder}", spaces.action
    for name, space in spaces.observation.items():
        found = first.observations.get(name)
        if found is None:
            held = ", ".join(first.observations) or "nothing"
            raise DataError(f"{where} holds no {name!r}, which the simulator shows; it holds {held}")
        if found.shape[1:] != tuple(space.shape):
            raise DataError(
                f"{where} holds {name!r} of shape {list(found.shape[1:])}, the simulator shows "
                f"{list(space.shape)}; {_MEND}"
            )
    if first.actions.shape[1:] != (() if action.n is not None else (1, *action.shape)):
        held = (
            f"actions of shape {list(first.actions.shape[2:])}"
            if first.actions.ndim > 1
            else "numbers of actions"
        )
        taken = f"one of {action.n}" if action.n is not None else str(list(action.shape))
        raise DataError(f"{where} holds {held}, the simulator takes {taken}; {_MEND}")
