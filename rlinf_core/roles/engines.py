"""The rollout engines of several policies on one rank, as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from rlinf_core.api.backend import WeightBucket
from rlinf_core.api.rollout import RolloutEngine
from rlinf_core.errors import ModelError
from rlinf_core.types import OWN, Request, Sample, Sampling


class Engines(RolloutEngine):
    """By the names of policies, the run's own among them. A request goes to the engine of its policy."""

    def __init__(self, each: Mapping[str, RolloutEngine]) -> None:
        own = each[OWN]
        super().__init__(own.config, own.model, own.lora, own.device, own.seed)
        self.each = dict(each)

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        """The engines take turns: one goes on until something of it is finished."""
        desk = _Desk(iter(requests), {name: _Seat(engine) for name, engine in self.each.items()})
        return desk.run(sampling)

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Each gets its own, which come one policy after the other. All have the same version then."""
        coming = _Coming(iter(buckets))
        missing = set(self.each)
        version = -1
        while (name := coming.policy()) is not None:
            if name not in missing:
                raise ModelError(f"weights of policy {name!r} came twice, or there is none of this name")
            missing.discard(name)
            mine = coming.of(name)
            version = self.each[name].load_weights(mine)
            for _ in mine:
                continue
        if missing and self.version < 0:
            raise ModelError(f"no weights came for policy {min(missing)!r}")
        self.version = version
        return version

    def weight_dtype(self) -> str:
        """Where they agree."""
        kinds = {engine.weight_dtype() for engine in self.each.values()}
        return kinds.pop() if len(kinds) == 1 else ""

    def abort(self) -> list[Request]:
        """Of all."""
        return [request for engine in self.each.values() for request in engine.abort()]

    def memory_bytes(self) -> float:
        return sum(engine.memory_bytes() for engine in self.each.values())

    def onload(self) -> None:
        for engine in self.each.values():
            engine.onload()

    def offload(self) -> None:
        for engine in self.each.values():
            engine.offload()

    def close(self) -> None:
        for engine in self.each.values():
            engine.close()


class _Coming:
    """Buckets of several policies, one policy after the other."""

    def __init__(self, buckets: Iterator[WeightBucket]) -> None:
        self._buckets = buckets
        self._next: WeightBucket | None = None

    def policy(self) -> str | None:
        """Whose the next one is; None after the last."""
        while self._next is None or not self._next.tensors:
            self._next = next(self._buckets, None)
            if self._next is None:
                return None
        return next(iter(self._next.tensors)).partition(":")[0]

    def of(self, name: str) -> Iterator[WeightBucket]:
        """Those of this policy, by the names that its model knows."""
        while self._next is not None and self.policy() == name:
            bucket, self._next = self._next, None
            tensors = {weight.partition(":")[2]: tensor for weight, tensor in bucket.tensors.items()}
            yield WeightBucket(bucket.version, tensors, bucket.last)


class _Seat:
    """An engine, and what waits for it."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine = engine
        self.waiting: deque[Request] = deque()
        self.inside = 0  # requests that it has taken and not answered
        self.running: Iterator[list[Sample]] | None = None


class _Desk:
    """Takes requests in for all engines."""

    def __init__(self, requests: Iterator[list[Request]], seats: Mapping[str, _Seat]) -> None:
        self._requests = requests
        self._seats = seats
        self._more = True

    def run(self, sampling: Sampling) -> Iterator[list[Sample]]:
        """Finished samples as they finish."""
        while True:
            if not self._busy():
                self._take()
                if not self._busy():
                    if self._more:
                        continue
                    self._finish()
                    return
            for seat in self._seats.values():
                if not seat.waiting and not seat.inside:
                    continue
                if seat.running is None:
                    seat.running = seat.engine.generate(self._source(seat), sampling)
                found = next(seat.running, None)
                if found is None:
                    seat.running = None
                else:
                    seat.inside -= len(found)
                    yield found

    def _finish(self) -> None:
        """Let engines see that nothing comes any more."""
        for seat in self._seats.values():
            for _ in seat.running or ():
                continue

    def _busy(self) -> bool:
        return any(seat.waiting or seat.inside for seat in self._seats.values())

    def _take(self) -> None:
        chunk = next(self._requests, None) if self._more else None
        self._more = self._more and chunk is not None
        for request in chunk or ():
            self._seats[request.policy].waiting.append(request)

    def _source(self, seat: _Seat) -> Iterator[list[Request]]:
        """For one engine, until it has nothing to do and nothing waits for it."""
        while True:
            self._take()
            chunk = list(seat.waiting)
            seat.waiting.clear()
            if not chunk and not seat.inside:
                return
            seat.inside += len(chunk)
            yield chunk
