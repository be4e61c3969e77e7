"""The processes of a pool together: who is told what, and waiting for what they say."""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.errors import PluginError, RlinfError
from rlinf_core.isolation.wire import Message
from rlinf_core.pool.part import Part
from rlinf_core.pool.protocol import VERSION, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Parts:
    """One part of so many environments for each of `sizes`. Any: JSON values."""

    def __init__(self, said: Mapping[str, Any], sizes: Sequence[int], start: Callable[..., Part]) -> None:
        self.name: str = said["name"]
        self.all: list[Part] = []
        self._watched_pids: list[int] = []
        self._poller = select.poll()
        self._owners: dict[int, Part] = {}
        try:
            for i, size in enumerate(sizes):
                first = sum(sizes[:i])
                own = {"version": VERSION, "share": [first, first + size], "seed": said["seed"] + first}
                self.all.append(start({**said, **own}))
        except BaseException:
            self.close()
            raise

    def all_ready(self) -> bool:
        """Every process has its simulator."""
        return all(part.ready for part in self.all)

    def all_idle(self) -> bool:
        """No answer is awaited."""
        return not any(part.busy for part in self.all)

    def descriptors(self) -> list[int]:
        """Of all processes."""
        return [number for part in self.all for number in part.process.descriptors()]

    def tell(self, part: Part, kind: Kind, said: Any = None) -> None:  # Any: JSON values
        """Send to a process that is there, now or after it has started."""
        while True:
            self.wait(lambda: part.ready)
            if part.say(kind, said):
                return

    def call(
        self,
        method: str,
        parts: Sequence[Part],
        arguments: Callable[[Part], list[Any]] = lambda part: [],  # Any: JSON values
        *,
        raw: bytes = b"",
        lasting: bool = True,
    ) -> list[Message]:
        """Answers of processes; with `lasting`, it is an error if one dies meanwhile."""
        for part in parts:
            self.wait(lambda part=part: part.ready)  # type: ignore[misc]  # bound now
            part.say(Kind.CALL, {"method": method, "arguments": arguments(part)}, raw)
        try:
            self.wait(self.all_idle)
        except RlinfError:
            self._drain()
            raise
        answers = [part.reply for part in parts if part.reply is not None]
        if lasting and len(answers) < len(parts):
            raise PluginError(f"simulator {self.name}: a process ended during {method}")
        return answers

    def gather(self, method: str, arguments: Callable[[Part], list[Any]]) -> NDArray[Any]:
        """Arrays of all environments, from those of every process."""
        return np.concatenate(
            [
                np.frombuffer(answer.raw, answer.said["type"]).reshape(answer.said["shape"])
                for answer in self.call(method, self.all, arguments)
            ]
        )

    def pictures(self, part: Part, envs: Sequence[int]) -> NDArray[Any]:
        """Of these environments of a process; none of one that has died, or has not started them since."""
        told = [n - part.first for n in envs]
        answers = self.call("render_some", [part], lambda _: [told], lasting=False) if part.begun else []
        if not answers:
            return np.empty((0, 0, 0, 3), dtype=np.uint8)
        return np.frombuffer(answers[0].raw, answers[0].said["type"]).reshape(answers[0].said["shape"])

    def wait(self, true: Callable[[], bool]) -> None:
        """Take in what is said until something is true."""
        while not true():
            self.collect(math.inf)

    def collect(self, longest_s: float) -> None:
        """Take in what the processes say; wait for it up to so long, and no longer than one may take."""
        poller, owners = self._watched()
        deadlines = [part.deadline for part in self.all if part.deadline is not None]
        longest_s = min([longest_s, *(deadline - time.monotonic() for deadline in deadlines)])
        told = poller.poll(None if longest_s == math.inf else max(0.0, longest_s) * 1000)
        for part in {id(owners[number]): owners[number] for number, _ in told}.values():
            part.take()
        now = time.monotonic()
        for part in self.all:
            part.watch(now)

    def _drain(self) -> None:
        """Let the others end what they were asked, so that the next answers are to the next questions."""
        while not self.all_idle():
            with contextlib.suppress(RlinfError):  # one error is on its way to the user already
                self.collect(math.inf)

    def _watched(self) -> tuple[select.poll, dict[int, Part]]:
        """What all processes may become readable on; made anew after one was replaced."""
        pids = [part.process.pid for part in self.all]
        if pids != self._watched_pids:
            self._poller = select.poll()
            self._owners = {number: part for part in self.all for number in part.process.descriptors()}
            for number in self._owners:
                self._poller.register(number, select.POLLIN)
            self._watched_pids = pids
        return self._poller, self._owners

    def close(self) -> None:
        """The processes have ended when this returns."""
        for part in self.all:
            part.close()
        while self.all:
            self.all.pop().end()
