"""Episodes as columns of frames, named as LeRobot names them, and back.

Axes: T frames (one action each), A action dimensions, S state size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.api.instructions import instruction_bytes, instruction_texts
from rlinf_core.errors import DataError
from rlinf_core.types import Trajectory

STATE, ACTION = "observation.state", "action"
PICTURES = "observation.images."  # and the camera's name
REWARD, DONE, SUCCESS, TRUNCATED = "next.reward", "next.done", "next.success", "next.truncated"
TIMES = ("timestamp", "frame_index", "episode_index", "index", "task_index")  # which every frame has

Columns = dict[str, NDArray[Any]]  # name -> [T, ...]; Any: of several types


@dataclass(frozen=True)
class Frames:
    """One episode: its columns without `TIMES`, and the task of each frame."""

    columns: Columns
    tasks: list[str]  # T texts

    @property
    def length(self) -> int:
        """T."""
        return len(self.tasks)


def is_picture(column: NDArray[Any]) -> bool:
    """Whether a column is `[T, H, W, 3]` of what a camera saw."""
    return column.ndim == 4 and column.dtype == np.uint8


def to_frames(episode: Trajectory) -> Frames:
    """Raises `DataError` for an episode whose decisions are several actions each: the others show nothing."""
    actions = episode.actions
    count = len(actions)
    if actions.ndim > 2:
        if actions.shape[1] != 1:
            raise DataError(
                f"an episode with {actions.shape[1]} actions a decision cannot be a dataset of frames, since "
                "only the first of them has an observation; record with one action a decision"
            )
        actions = actions.reshape(count, -1)
    columns: Columns = {ACTION: actions}
    for name, shown in episode.observations.items():
        if name == "state":
            columns[STATE] = np.asarray(shown, dtype=np.float32).reshape(count, -1)
        elif name.startswith("images/"):
            columns[PICTURES + name.removeprefix("images/").replace("/", ".")] = shown
    columns |= _outcome(episode, count)
    told = episode.observations.get("instruction")
    return Frames(columns, [""] * count if told is None else instruction_texts(told))


def _outcome(episode: Trajectory, count: int) -> Columns:
    paid = episode.step_rewards
    if paid is None:
        paid = np.zeros(count, dtype=np.float32)
        paid[-1:] = episode.reward or 0.0
    last = np.arange(count) == count - 1
    return {
        REWARD: np.asarray(paid, dtype=np.float32).reshape(count, -1).sum(1),
        DONE: last,
        SUCCESS: last & episode.success,
        TRUNCATED: last & episode.truncated,
    }


def to_trajectory(frames: Frames, number: int) -> Trajectory:
    """The episode, as group `number`. One that says nothing of success counts as a success."""
    columns, count = frames.columns, frames.length
    truncated = bool(columns[TRUNCATED].any()) if TRUNCATED in columns else False
    rewards_T = columns[REWARD].astype(np.float32).reshape(count) if REWARD in columns else None
    return Trajectory(
        group=number,
        replica=0,
        seed=0,
        mask=np.ones(count, dtype=bool),
        logprobs=np.zeros(count, dtype=np.float32),
        weight_version=0,
        finish="length" if truncated else "stop",
        reward=None if rewards_T is None else float(rewards_T.sum()),
        step_rewards=rewards_T,
        observations=_observations(columns, frames.tasks),
        actions=_actions(columns[ACTION]),
        success=bool(columns[SUCCESS].any()) if SUCCESS in columns else True,
        truncated=truncated,
    )


def _actions(column: NDArray[Any]) -> NDArray[Any]:
    """`[T, 1, A]`, or `[T]` for discrete ones."""
    if np.issubdtype(column.dtype, np.integer) and column.size == len(column):
        return column.reshape(-1).astype(np.int64)
    return column.reshape(len(column), 1, -1).astype(np.float32)


def _observations(columns: Mapping[str, NDArray[Any]], tasks: list[str]) -> dict[str, NDArray[Any]]:
    shown: dict[str, NDArray[Any]] = {}
    if STATE in columns:
        shown["state"] = columns[STATE].reshape(len(tasks), -1).astype(np.float32)
    for name, pictures in columns.items():
        if is_picture(pictures):
            shown["images/" + name.removeprefix(PICTURES).removeprefix("observation.")] = pictures
    if any(tasks):
        shown["instruction"] = instruction_bytes(tasks)
    return shown
