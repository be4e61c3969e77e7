"""How failures of workers are worded, and which of several is the one to report."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

from rlinf_core.comm.reading import UNREADABLE
from rlinf_core.errors import ConsumerDied, ProducerDied, RlinfError, WorkerError
from rlinf_core.worker.memory import RAN_OUT, is_exhausted

GRACE_S = 2.0  # how long a collective's error waits for the failure that caused it
_COLLECTIVE_MARKS = (
    "gloo",
    "nccl",
    "distbackenderror",
    "distnetworkerror",
    "diststoreerror",
    "connection closed by peer",
    "connection reset by peer",
    UNREADABLE,
)


class StageCancelledError(WorkerError):
    """A stage was told to stop because nobody wants, or nobody can make, the rest of its chunks."""


def raised(
    error: BaseException, worker: str, method: str, resident: Callable[[], str] | None = None
) -> WorkerError:
    """The `WorkerError` for an exception that a worker's method raised; the cause stays reachable. `resident`
    says what its process holds, should that be the matter."""
    if isinstance(error, WorkerError):
        return error
    if is_exhausted(error):
        held = resident() if resident is not None else ""
        return WorkerError(f"{worker}.{method} {RAN_OUT}{_place(error)}; {held}", worker=worker)
    text = "".join(traceback.format_exception(error))
    kind = type(error).__name__
    wrapped = WorkerError(f"{worker}.{method} failed: {kind}: {error}", worker=worker, traceback=text)
    if isinstance(error, RlinfError):
        wrapped.__cause__ = error
    return wrapped


def _place(error: BaseException) -> str:
    """Where, and what was said, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name} ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    said = (str(error).splitlines() or [""])[0][:200]
    return f"{where}: {said or type(error).__name__}"


def is_consequence(error: BaseException) -> bool:
    """Whether the error looks like the echo of another rank's failure: a broken collective, a cancelled
    stage, or a channel whose other end died."""
    if isinstance(error, (StageCancelledError, ProducerDied, ConsumerDied)):
        return True
    text = str(error).lower()
    return any(mark in text for mark in _COLLECTIVE_MARKS)


def first_real(errors: Sequence[BaseException]) -> BaseException:
    """The first error that is not another's consequence, or else the first."""
    return next((error for error in errors if not is_consequence(error)), errors[0])
