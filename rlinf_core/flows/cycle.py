"""Environments and the policy that acts in them: a round of episodes, also where a process is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_core.comm.stream import Stream
from rlinf_core.errors import WorkerDied, WorkerError

if TYPE_CHECKING:
    from rlinf_core.types import EpisodeRequest, Trajectory
    from rlinf_core.worker import WorkerGroup

_IN_COMPANY = 2  # losses in a round, after which its episodes are played one by one


class Mender(Protocol):
    """Brings environments and policies back."""

    def mend_cycle(self, error: WorkerError, since: float) -> None:
        """Build all of them anew where one has lost its process. Raises an error, such as this one, where
        none has, or where the run cannot go on."""

    def leave_out(self, request: EpisodeRequest, death: WorkerError) -> None:
        """Note that an episode has cost a process whenever it was played."""


class Cycle:
    """The two groups talk at every action, so that what becomes of one is the other's end. With a `mender` a
    round that ended so is played again from its beginning, by workers that are as new, and episodes that have
    come already are left out: what comes is what would have come.

    Where that costs a process again, episodes are played one by one; one that costs a process then is left
    out.
    """

    def __init__(self, environment: WorkerGroup, policy: WorkerGroup, mender: Mender | None = None) -> None:
        self.environment = environment
        self.policy = policy
        self._mender = mender

    def play(self, groups: Stream, *, greedy: bool = False) -> Stream:
        """Whole episodes as they end; its result is what each rank of environments reports."""
        return _Round(self, groups, greedy, self._mender).stream()

    def begin(self, groups: Stream, greedy: bool) -> tuple[Stream, Callable[[], None]]:
        """Episodes, and what to call after the last."""
        acting = self.policy.call("serve")
        played = acting.guard(self.environment.stage("rollout", groups, greedy=greedy))
        return played, lambda: (acting.wait(), None)[1]


class _Round:
    def __init__(self, cycle: Cycle, groups: Stream, greedy: bool, mender: Mender | None) -> None:
        self._cycle = cycle
        self._groups = groups
        self._greedy = greedy
        self._mender = mender
        self._now: Stream | None = None
        self._reports: list[Any] = []
        self._came: set[tuple[int, int]] = set()
        self._began = 0.0

    def stream(self) -> Stream:
        """The first round begins at once: what follows may be queued behind it in the same processes."""
        if self._mender is None:
            chunks = self._once(self._begin(self._groups))
        else:
            asked = list(self._groups)
            chunks = self._mended(self._mender, self._begin(Stream.of(asked)), asked)
        return Stream(chunks, result=lambda: self._reports, cancel=self._cancel)

    def _cancel(self) -> None:
        if self._now is not None:
            self._now.cancel()

    def _begin(self, groups: Stream) -> Callable[[], None]:
        self._began = time.monotonic()
        self._now, end = self._cycle.begin(groups, self._greedy)
        return end

    def _once(self, end: Callable[[], None]) -> Iterator[list[Trajectory]]:
        if self._now is None:
            raise RuntimeError("a round that has not begun")
        for chunk in self._now:
            fresh = [row for row in chunk if (row.group, row.replica) not in self._came]
            self._came.update((row.group, row.replica) for row in fresh)
            yield fresh
        end()
        self._reports = self._now.result

    def _mended(
        self, mender: Mender, first: Callable[[], None], asked: Sequence[list[EpisodeRequest]]
    ) -> Iterator[list[Trajectory]]:
        for number in range(_IN_COMPANY):
            try:
                yield from self._once(self._begin(Stream.of(asked)) if number else first)
                return
            except WorkerError as error:
                mender.mend_cycle(error, self._began)
        for request in (request for group in asked for request in group):
            if (request.group, request.replica) not in self._came:
                yield from self._alone(request, mender)

    def _alone(self, request: EpisodeRequest, mender: Mender) -> Iterator[list[Trajectory]]:
        before = self._reports
        try:
            yield from self._once(self._begin(Stream.of([[request]])))
            self._reports = [*before, *self._reports]
        except WorkerDied as death:
            mender.mend_cycle(death, self._began)
            mender.leave_out(request, death)
