"""Killable processes that score responses, with a deadline an item."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait

from rlinf_core.api.reward import RewardItem, RewardResult
from rlinf_core.errors import ConfigError, RewardError
from rlinf_core.roles.reward_handle import EXIT_GRACE_S, START_DEADLINE_S, Job, ScoringProcess
from rlinf_core.roles.reward_scoring import LoadedReward, PoolReward, ScoredItem, combine

__all__ = ["PoolReward", "RewardPool", "ScoredItem"]

FIRST_BATCH = 32  # items sent at once while nothing is known about their cost
MAX_BATCH = 256
MOST_HANGS = 16  # timeouts in a row that end the run; waiting for every sample would take hours
BATCH_SHARE = 0.25  # of the deadline that a whole batch is expected to take


class RewardPool:
    """Scores responses with weighted rewards.

    A batch that misses the deadline of one item loses its process and is scored again item by item,
    so that only the item to blame is reported. `workers=0` scores in this process, for debugging.
    Raises `RewardError` when a reward cannot be loaded, returns a wrong number of results, or times out
    again and again.
    """

    def __init__(
        self, rewards: Sequence[PoolReward], *, workers: int = 1, timeout_s: float = 10.0, retries: int = 1
    ) -> None:
        if workers < 0 or retries < 0 or not timeout_s > 0:
            raise ConfigError(
                "reward_pool needs workers >= 0, retries >= 0 and timeout_s > 0; "
                f"got workers={workers}, retries={retries}, timeout_s={timeout_s}"
            )
        self.terms = _unique_names(rewards)
        self.timeout_s = timeout_s
        self.retries = retries
        self.seconds_per_item = 0.0  # moving average of one term
        self.hangs = 0  # timeouts since the last item that was scored
        self._lock = threading.Lock()
        self._local = [LoadedReward(term) for term in self.terms] if workers == 0 else []
        self.processes = [self.start() for _ in range(workers)]
        try:
            self._wait_until_ready()
        except RewardError:
            self.close()
            raise

    def score(self, items: Sequence[RewardItem]) -> list[ScoredItem]:
        """One scored item each, in order; safe to call from several threads, one at a time."""
        with self._lock:
            if self._local and items:
                columns = [reward.score(items, self.retries) for reward in self._local]
                return [combine(self.terms, [column[i] for column in columns]) for i in range(len(items))]
            return _Round(self, items).run()

    def close(self) -> None:
        """End the processes and whatever they started."""
        for process in self.processes:
            process.kill()
        self.processes = []

    def start(self) -> ScoringProcess:
        """A new process, loading the rewards."""
        return ScoringProcess((self.terms, self.retries, self.timeout_s))

    def _wait_until_ready(self) -> None:
        for process in self.processes:
            if not process.connection.poll(max(0.0, process.deadline - time.monotonic())):
                raise RewardError(_late(self.terms))
            process.confirm_ready()


class _Round:
    """One call of `RewardPool.score`: hands out batches, watches deadlines, collects results."""

    def __init__(self, pool: RewardPool, items: Sequence[RewardItem]) -> None:
        self.pool = pool
        self.items = items
        self.fresh = deque(range(len(items)))
        self.again: deque[Job] = deque()
        self.done: dict[int, ScoredItem] = {}

    def run(self) -> list[ScoredItem]:
        try:
            while len(self.done) < len(self.items):
                self._hand_out()
                self._collect()
        except BaseException:  # also an interrupt: no process may keep work of this round
            self._abandon()
            raise
        return [self.done[i] for i in range(len(self.items))]

    def _hand_out(self) -> None:
        for process in list(self.pool.processes):
            if not process.ready or process.job is not None:
                continue
            job = self._next_job()
            if job is None:
                return
            if not process.submit(job, self.items, self.pool.timeout_s):
                # It died between two rounds, which says nothing about these items.
                self.again.appendleft(job)
                self._replace(process)

    def _next_job(self) -> Job | None:
        if not self.fresh:
            return self.again.popleft() if self.again else None
        share = math.ceil(len(self.fresh) / len(self.pool.processes))
        slow = self.pool.seconds_per_item
        affordable = int(BATCH_SHARE * self.pool.timeout_s / slow) if slow > 0 else FIRST_BATCH
        size = max(1, min(MAX_BATCH, share, affordable))
        return Job([self.fresh.popleft() for _ in range(size)])

    def _collect(self) -> None:
        processes = {process.connection: process for process in self.pool.processes}
        next_deadline = min(process.deadline for process in processes.values())
        timeout = None if next_deadline == math.inf else max(0.0, next_deadline - time.monotonic())
        ready = wait(list(processes), timeout)
        for connection, process in processes.items():
            if connection in ready:
                self._take(process)
            elif time.monotonic() >= process.deadline:
                if not process.ready:
                    raise RewardError(_late(self.pool.terms))
                self._lose(process, "timeout")

    def _take(self, process: ScoringProcess) -> None:
        if not process.ready:
            process.confirm_ready()
            return
        try:
            kind, payload = process.receive()
        except (EOFError, OSError):
            self._lose(process, "error")
            return
        if kind == "failed":
            process.release()
            raise RewardError(payload)
        self._store(process, payload)

    def _store(self, process: ScoringProcess, column: list[RewardResult]) -> None:
        per_item = process.restart_clock(self.pool.timeout_s) / len(column)
        self.pool.seconds_per_item += 0.2 * (per_item - self.pool.seconds_per_item)
        process.columns.append(column)
        self.pool.hangs = 0
        if process.job is None or len(process.columns) < len(self.pool.terms):
            return
        for row, index in enumerate(process.job.indices):
            self.done[index] = combine(self.pool.terms, [column[row] for column in process.columns])
        process.release()

    def _lose(self, process: ScoringProcess, verdict: str) -> None:
        """Replace a process that hangs or died, and decide what becomes of its batch."""
        ending = self._replace(process, EXIT_GRACE_S if verdict == "error" else 0.0)
        job = process.job
        if job is None:
            return
        if len(job.indices) > 1:
            random.Random(0).shuffle(job.indices)  # neighbours share a prompt, and may all hang
            self.again.extend(Job([index]) for index in job.indices)
        elif verdict == "error" and job.attempts < self.pool.retries:
            self.again.append(Job(job.indices, job.attempts + 1))
        else:
            self.done[job.indices[0]] = self._unscored(process, verdict, ending)

    def _replace(self, process: ScoringProcess, grace_s: float = 0.0) -> str:
        ending = process.kill(grace_s)
        self.pool.processes[self.pool.processes.index(process)] = self.pool.start()
        return ending

    def _unscored(self, process: ScoringProcess, verdict: str, ending: str) -> ScoredItem:
        term = self.pool.terms[len(process.columns)]
        results = [column[0] for column in process.columns]
        if verdict == "timeout":
            limit = f"{self.pool.timeout_s:g} s (reward_pool.timeout_s)"
            self.pool.hangs += 1
            if self.pool.hangs >= MOST_HANGS:
                raise RewardError(
                    f"{term.label} took longer than {limit} for {MOST_HANGS} responses in a row"
                )
            results.append(RewardResult(0.0, "timeout", f"{term.label} took longer than {limit}"))
        else:
            results.append(RewardResult(0.0, "error", f"{term.label} ended its process with {ending}"))
        return combine(self.pool.terms, results)

    def _abandon(self) -> None:
        for process in list(self.pool.processes):
            if process.job is not None or process.connection.closed:
                self._replace(process)


def _unique_names(rewards: Sequence[PoolReward]) -> list[PoolReward]:
    """Name a second `x` `x_2`, so that its score is reported apart."""
    seen: dict[str, int] = {}
    unique = []
    for reward in rewards:
        count = seen[reward.name] = seen.get(reward.name, 0) + 1
        unique.append(reward if count == 1 else replace(reward, name=f"{reward.name}_{count}"))
    return unique


def _late(terms: Sequence[PoolReward]) -> str:
    names = ", ".join(term.name for term in terms)
    return f"loading the rewards ({names}) took longer than {START_DEADLINE_S:g} s"
