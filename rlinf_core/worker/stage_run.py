"""One stage on all ranks of a group: chunks are routed to the ranks, and what they yield is merged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

from rlinf_core.api.engine import StageCall
from rlinf_core.comm.channel import Channel
from rlinf_core.comm.stream import Stream
from rlinf_core.errors import ChannelClosed
from rlinf_core.worker.failures import GRACE_S, StageCancelledError, first_real, is_consequence

Chunk = list[Any]
Route = Literal["spread", "broadcast", "shared"]
ROUTES: tuple[Route, ...] = get_args(Route)


def run_stage(
    calls: Sequence[StageCall], source: Stream, route: Route, weight: Callable[[Chunk], float]
) -> Stream:
    """The merged output of `calls`, fed from `source` by a thread, or by themselves where they can."""
    if len(calls) == 1 and calls[0].feed(iter(source)):
        only = calls[0]
        return Stream(only, result=lambda: [only.result()], cancel=only.cancel)
    kind = _SharedRun if route == "shared" else _StageRun
    run = kind(calls, source, Router(len(calls), route, weight))
    return Stream(run.outputs(), result=run.results, cancel=run.cancel)


class Router:
    """Which ranks get a chunk: all, or the one with the least weight so far (ties: the lowest)."""

    def __init__(self, ranks: int, route: Route, weight: Callable[[Chunk], float]) -> None:
        self.loads = [0.0] * ranks
        self.everyone = route == "broadcast"
        self.weight = weight

    def targets(self, chunk: Chunk) -> Sequence[int]:
        """Ranks for this chunk; depends on the chunks seen, never on timing."""
        if self.everyone:
            return range(len(self.loads))
        rank = self.loads.index(min(self.loads))
        self.loads[rank] += self.weight(chunk)
        return (rank,)


class _StageRun:
    def __init__(self, calls: Sequence[StageCall], source: Stream, router: Router) -> None:
        self.calls = calls
        self.source = source
        self.router = router
        self._errors: list[BaseException] = []
        self._over = False
        self._work: Channel[Chunk] = Channel(heaviest=True)  # of a shared stage: what no rank has taken yet
        self._lock = threading.Lock()
        self._asking: set[StageCall] = set()  # ranks that may be about to be sent a chunk
        self._ended = False  # there are no more
        self._feeder = threading.Thread(target=self._feed, name="stage-feeder", daemon=True)
        self._feeder.start()

    def outputs(self) -> Iterator[Chunk]:
        """Chunks as ranks yield them. Raises the first real error of the source and the ranks."""
        try:
            yield from self._chunks(self.calls[0]) if len(self.calls) == 1 else self._merged()
        except GeneratorExit:
            raise
        except BaseException as error:
            real = first_real([*self._errors, error])
            if real is error:
                raise
            raise real from real.__cause__
        finally:
            self.cancel()

    def results(self) -> list[Any]:
        """What the stage returned on each rank."""
        return [call.result() for call in self.calls]

    def cancel(self) -> None:
        """End the ranks' stages and the source; after a good end this changes nothing."""
        if not self._over:
            self._over = True
            for call in self.calls:
                call.cancel()
            self.source.cancel()

    def _feed(self) -> None:
        try:
            for chunk in self.source:
                if self._over:
                    return
                for rank in self.router.targets(chunk):
                    self.calls[rank].send(chunk)
            for call in self.calls:
                call.close()
        except BaseException as error:  # the border of a thread: whoever iterates the output raises it
            self._errors.append(error)
            for call in self.calls:
                call.cancel()

    def _merged(self) -> Iterator[Chunk]:
        merged: Channel[Chunk | None] = Channel(capacity=2 * len(self.calls))
        failures: Channel[BaseException] = Channel()
        for call in self.calls:
            threading.Thread(
                target=_drain, args=(self._chunks(call), merged, failures), name="stage-merger", daemon=True
            ).start()
        try:
            running = len(self.calls)
            while running:
                chunk = merged.get()
                if chunk is None:
                    running -= 1
                else:
                    yield chunk
        except ChannelClosed:
            failure = self._failure(failures)
            raise failure from failure.__cause__
        finally:
            merged.close()

    def _chunks(self, call: StageCall) -> Iterator[Chunk]:
        """What one rank yields."""
        return iter(call)

    def _failure(self, failures: Channel[BaseException]) -> BaseException:
        """The error to report, once a rank has failed: a consequence waits a while for its cause."""
        found = [failures.get()]
        while not self._errors and len(found) < len(self.calls) and is_consequence(first_real(found)):
            try:
                found.append(failures.get(timeout_s=GRACE_S))
            except TimeoutError:
                break
        return first_real(found)


class _SharedRun(_StageRun):
    """No rank has chunks of its own: with each chunk that a rank yields, empty ones included, it asks for the
    heaviest of those that are there, so that ranks end together. One that has other work to do first asks
    later, and gets less."""

    def cancel(self) -> None:
        """Nobody gets any more chunks, either."""
        if not self._over:
            self._work.abandon(StageCancelledError("the stage that shares these chunks was cancelled"))
        super().cancel()

    def _feed(self) -> None:
        try:
            for chunk in self.source:
                if not self._work.put(chunk, self.router.weight(chunk)):
                    return
            self._work.close()
        except BaseException as error:  # the border of a thread: whoever iterates the output raises it
            self._errors.append(error)
            self.cancel()

    def _chunks(self, call: StageCall) -> Iterator[Chunk]:
        for chunk in call:
            if chunk:
                yield chunk
            with self._lock:
                self._asking.add(call)
            try:
                work = self._work.get()
            except ChannelClosed:
                self._ended = True
            else:
                call.send(work)
            with self._lock:
                self._asking.discard(call)
                last = [each for each in self.calls if self._ended and each not in self._asking]
            for each in last:  # for all: a rank that hangs in its last chunk is seen to be late
                each.close()


def _drain(chunks: Iterator[Chunk], merged: Channel[Chunk | None], failures: Channel[BaseException]) -> None:
    try:
        for chunk in chunks:
            if not merged.put(chunk):
                return
        merged.put(None)
    except BaseException as error:  # the border of a thread: the merging side raises it
        failures.put(error)
        merged.close()
