"""Measures how long a message and a weight update take between every two processes."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.api import HostSpec, WeightBucket
from rlinf_core.comm.places import copy_into
from rlinf_core.comm.transport import choose
from rlinf_core.roles.publishing import Publisher
from rlinf_core.roles.weight_sync import WeightSync
from rlinf_core.roles.weights import Receiver
from rlinf_core.worker import WorkerContext, WorkerGroup, on_host

if TYPE_CHECKING:
    from rlinf_core.api import Engine, Host

BYTES = 64 * 2**20  # of the weights
_PINGS = 20
_UPDATES = 5  # the first ones touch memory, and do not count
_MODULE = __name__


@dataclass(frozen=True)
class Pair:
    """Two processes, by what they compute on, and what passes between them."""

    sender: str
    receiver: str
    way: str
    message_ms: float  # from the driver to the receiver and back
    update_ms: float  # of weights, until the receiver has a copy of its own

    @property
    def gb_per_s(self) -> float:
        """At which weights arrive."""
        return BYTES / self.update_ms / 1e6


class Weights:
    """A trainer of one tensor."""

    def __init__(self, device: str) -> None:
        self.version = 0
        self.tensor = torch.nn.Parameter(torch.ones(BYTES // 4, device=device), requires_grad=False)

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """All of it."""
        yield WeightBucket(self.version, {"weights": self.tensor}, last=True)


class Sender(Publisher):
    """Has weights."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.trainer: Any = Weights(context.device)  # Any: as much of a trainer as an update sees

    def change(self) -> None:
        """The next version."""
        self.trainer.version += 1
        self.trainer.tensor.fill_(self.trainer.version)


class Taker(Receiver):
    """Copies what it is given."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._version = -1
        self._own = torch.zeros(BYTES // 4, device=context.device)

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Into memory of its own."""
        for bucket in buckets:
            copy_into(self._own, bucket.tensors["weights"])
            self._version = bucket.version
        return self._version

    @on_host
    def version(self) -> int:
        """Of what it has."""
        return self._version

    def seen(self) -> float:
        """The last of its numbers."""
        return float(self._own[-1])


def matrix(engine: Engine, devices: Sequence[str]) -> Generator[Pair, None, None]:
    """Every ordered pair of processes, one on each device; ends them."""
    try:
        hosts = engine.start(
            HostSpec(f"host{number}", device=None if device == "cpu" else number)
            for number, device in enumerate(devices)
        )
        for i, sender in enumerate(hosts):
            for j, receiver in enumerate(hosts):
                yield _measure((sender, devices[i], i), (receiver, devices[j], j))
    finally:
        engine.stop()


def _measure(sender: tuple[Host, str, int], receiver: tuple[Host, str, int]) -> Pair:
    actor = WorkerGroup.create("sender", f"{_MODULE}:Sender", [sender[0]], {}, [sender[1]], 0)
    taker = WorkerGroup.create("receiver", f"{_MODULE}:Taker", [receiver[0]], {}, [receiver[1]], 0)
    places = actor.call_rank(0, "standpoint").result(), taker.call_rank(0, "standpoint").result()[0]
    sync = WeightSync(actor, taker)
    updates = []
    for number in range(1, 1 + _UPDATES):
        actor.call("change").wait()
        updates.append(_seconds(sync))
        if taker.call("seen").wait() != [float(number)]:
            raise RuntimeError(f"{receiver[0].name} does not have what {sender[0].name} has sent")
    pings = [_seconds(lambda: taker.call_rank(0, "version").result()) for _ in range(_PINGS)]
    for group in (actor, taker):
        group.drop().wait()
    one, other = (f"{who[2]} ({who[1]})" for who in (sender, receiver))
    return Pair(one, other, choose(*places).value, 1e3 * min(pings), 1e3 * min(updates[2:]))


def _seconds(function: Any) -> float:  # Any: called without arguments
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
