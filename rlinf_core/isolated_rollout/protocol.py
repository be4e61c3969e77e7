"""What a proxy and its engine's process say to each other. Weights are not in it: they lie in shared memory.

Both sides import this file. Jobs and progress are arrays of little-endian numbers behind the message.

Axes: J jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.isolated_rollout.engine import Job, Progress

if TYPE_CHECKING:
    from rlinf_core.types import FinishReason

VERSION = 1  # of everything in this file and in buckets.py
_FINISHES: tuple[FinishReason | None, ...] = (None, "stop", "length", "abort")


class Kind(IntEnum):
    """Of messages. Those to the process that carry a number are answered by `ANSWER` or `ERROR` with it."""

    START = 1  # to the process: which engine, its config and setup
    HELLO = 2  # from it: what the engine says of itself
    ADD = 3  # to the process: jobs
    PROGRESS = 4  # from it, whenever there is some
    ABORT = 5  # numbered; what was drawn comes as progress before the answer
    BEGIN = 6  # an update: from now on no job runs
    BUCKET = 7  # numbered: weights lie in the memory
    FINISH = 8  # numbered: they were all; with digests of what was sent
    CALL = 9  # numbered: a method without arguments
    ANSWER = 10
    ERROR = 11
    PING = 12  # to the process; answered at once, also while it works
    PONG = 13  # from it: how many steps it has made
    CLOSE = 14


def pack_jobs(jobs: Sequence[Job]) -> bytes:
    """As raw bytes of a message."""
    table_J5 = [[j.number, j.seed, j.most, j.least, len(j.token_ids)] for j in jobs]
    tokens = [np.asarray(job.token_ids, dtype="<i8") for job in jobs]
    return (
        np.concatenate([np.array([len(jobs)]), np.array(table_J5).ravel(), *tokens]).astype("<i8").tobytes()
    )


def unpack_jobs(raw: bytes) -> list[Job]:
    """What `pack_jobs` was given."""
    numbers = np.frombuffer(raw, dtype="<i8")
    count = int(numbers[0])
    begin = 1 + 5 * count
    jobs = []
    for number, seed, most, least, length in numbers[1:begin].reshape(count, 5).tolist():
        jobs.append(Job(number, numbers[begin : begin + length].tolist(), seed, most, least))
        begin += length
    return jobs


def pack_progress(made: Sequence[Progress]) -> bytes:
    """As raw bytes of a message."""
    table_J3 = [[p.number, len(p.token_ids), _FINISHES.index(p.finish)] for p in made]
    heads = np.array([len(made), *np.array(table_J3).ravel()], dtype="<i8")
    tokens = np.concatenate([np.asarray(p.token_ids, dtype="<i4") for p in made])
    logprobs = np.concatenate([np.asarray(p.logprobs, dtype="<f4") for p in made])
    return heads.tobytes() + tokens.tobytes() + logprobs.tobytes()


def unpack_progress(raw: bytes) -> list[Progress]:
    """What `pack_progress` was given, with arrays."""
    count = int(np.frombuffer(raw, "<i8", 1)[0])
    table_J3 = np.frombuffer(raw, "<i8", 3 * count, 8).reshape(count, 3)
    total = int(table_J3[:, 1].sum())
    begin = 8 + 24 * count
    tokens = np.frombuffer(raw, "<i4", total, begin).astype(np.int64)
    logprobs = np.frombuffer(raw, "<f4", total, begin + 4 * total)
    made, at = [], 0
    for number, length, finish in table_J3.tolist():
        part = slice(at, at + length)
        made.append(Progress(number, tokens[part], logprobs[part], _FINISHES[finish]))  # type: ignore[arg-type]
        at += length
    return made
