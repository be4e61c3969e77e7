"""The errors that rlinf raises; each message says what was asked, what there is and what to do."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import PurePath


class RlinfError(Exception):
    """Base of every error that a user can cause or needs to read."""


class ConfigError(RlinfError):
    """A setting is unknown, of the wrong type, out of range, or impossible beside another one."""


class PluginError(RlinfError):
    """A plugin is broken, of the wrong API version, or offered twice."""


class PluginNotFoundError(PluginError):
    """No installed distribution offers the plugin asked for."""


class DataError(RlinfError):
    """A dataset is missing, empty or has an unusable row."""


class ModelError(RlinfError):
    """A model cannot be found, loaded or used for what was asked."""


class RewardError(RlinfError):
    """A reward function raises, hangs or returns something unusable too often."""


class ToolError(RlinfError):
    """A tool cannot do what a model asked of it; the model reads why."""


class TrainingError(RlinfError):
    """Losses or gradients are not finite, again and again."""


class OutOfMemoryError(RlinfError):
    """The memory of a machine or a device was not enough for what a run wanted to hold."""


class SelectionError(RlinfError):
    """Too few of the groups that were generated are ones that the algorithm trains on."""


class CheckpointError(RlinfError):
    """A checkpoint is missing, damaged or made by a different run."""


class WorkerError(RlinfError):
    """A worker raised or died.

    `worker` names it (`actor[1]`); `traceback` is the worker's own traceback, or "".
    """

    def __init__(self, message: str, *, worker: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.worker = worker
        self.traceback = traceback


class WorkerDied(WorkerError):  # noqa: N818 - the other half of `ProducerDied`
    """The process or the machine of a worker is gone; what the worker was asked may work elsewhere."""


class ChannelClosed(RlinfError):  # noqa: N818 - it is an end more than an error
    """A channel has ended: what was inside has been taken, and nothing more will come."""


class ProducerDied(WorkerDied):
    """A worker that puts into a channel died before it had said goodbye."""


class ConsumerDied(WorkerDied):
    """A worker that takes from a channel died before it had said goodbye; items may be lost with it."""


def suggest(asked: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest known name, or "" if none is near."""
    near = difflib.get_close_matches(asked, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def summary(error: BaseException) -> str:
    """One line: the error's type, what it says, and the line of code that raised it."""
    said = f"{type(error).__name__}: {error}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename[:1] != "<"]
    if not frames or isinstance(error, SyntaxError):  # which says itself where
        return said
    return f"{said} ({PurePath(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})"
