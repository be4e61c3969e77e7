"""Workers that the engine tests run in other processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rlinf_core.comm.spans import span
from rlinf_core.errors import RewardError
from rlinf_core.worker import Worker, WorkerContext, on_host, stage


class Probe(Worker):
    def __init__(self, context: WorkerContext, *, factor: int = 2) -> None:
        super().__init__(context)
        self.factor = factor
        self.seen: list[Any] = []
        self.taken = 0

    def echo(self, value: Any) -> Any:
        return value

    def sink(self, value: Any) -> None:
        """Take and forget."""

    def note(self, value: Any) -> list[Any]:
        self.seen.append(value)
        return list(self.seen)

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.context.name,
            "rank": self.context.rank,
            "world_size": self.context.world_size,
            "seed": self.context.seed,
            "device": self.context.device,
            "factor": self.factor,
            "pid": os.getpid(),
            "peers": sorted(self.context.peers),
            "torch": "torch" in sys.modules,
            "env": dict(os.environ),
            "thread": threading.current_thread() is threading.main_thread(),
        }

    def affinity(self) -> list[int]:
        return sorted(os.sched_getaffinity(0))

    def peer_is_this_object(self, name: str) -> bool:
        return self.context.peers[name] is self

    def torch_threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def wait_inside(self, seconds: float) -> None:
        with span("wait", name="channel"):
            time.sleep(seconds)

    def fail(self, text: str) -> None:
        raise ValueError(text)

    def fail_as_reward(self) -> None:
        raise RewardError("5 of 8 samples could not be scored")

    def fail_on(self, rank: int, how: str) -> None:
        """Rank `rank` fails as told; the others break as a collective would."""
        if self.context.rank != rank:
            raise RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")
        time.sleep(0.3)
        if how == "die":
            self.die()
        raise ValueError("the cause")

    def die(self) -> None:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def exit(self, code: int) -> None:
        os._exit(code)

    def unpicklable(self) -> Any:
        return lambda: None

    def start_child(self) -> int:
        import subprocess

        return subprocess.Popen(["sleep", "600"]).pid

    def items_taken(self) -> int:
        return self.taken

    @stage
    def double(self, chunks: Iterator[list[int]]) -> Iterator[list[int]]:
        count = 0
        for chunk in chunks:
            count += len(chunk)
            yield [self.factor * item for item in chunk]
        return count

    @stage
    def tag(self, chunks: Iterator[list[int]]) -> Iterator[list[tuple[int, int]]]:
        for chunk in chunks:
            time.sleep(0.002 * ((self.context.rank + len(chunk)) % 2))
            yield [(self.context.rank, item) for item in chunk]

    @stage
    def slowly(self, chunks: Iterator[list[Any]], *, seconds: float) -> Iterator[list[Any]]:
        for chunk in chunks:
            time.sleep(seconds)
            self.taken += 1
            yield [len(chunk)]

    @stage
    def endless(self, chunks: Iterator[list[int]], *, size: int = 8) -> Iterator[list[bytes]]:
        self.taken = 0
        while True:
            self.taken += 1
            yield [bytes(size)]

    @stage
    def gather(self, chunks: Iterator[list[Any]]) -> Iterator[list[Any]]:
        self.seen = [item for chunk in chunks for item in chunk]
        yield [len(self.seen)]

    @stage
    def burst(self, chunks: Iterator[list[int]], *, count: int, size: int) -> Iterator[list[bytes]]:
        for _ in chunks:
            pass
        for _ in range(count):
            yield [bytes(size)]

    @stage
    def fails_at(self, chunks: Iterator[list[int]], *, bad: int, how: str = "raise") -> Iterator[list[int]]:
        for chunk in chunks:
            if bad in chunk:
                if how == "die":
                    self.die()
                if how == "ours":
                    self.fail_as_reward()
                raise ValueError(f"cannot do {bad}")
            yield chunk

    @stage
    def ask(self, chunks: Iterator[list[Any]], *, bad: int = -1, how: str = "raise") -> Iterator[list[Any]]:
        """Of a shared stage: takes chunks as long as nobody else has taken them."""
        taken: list[Any] = []
        yield []
        for chunk in chunks:
            if chunk == [bad]:
                if how == "die":
                    self.die()
                raise ValueError(f"cannot do {bad}")
            taken += chunk
            yield [(self.context.rank, *chunk)]
        return taken

    @stage
    def first_only(self, chunks: Iterator[list[int]]) -> Iterator[list[int]]:
        yield next(chunks)


class Collective(Worker):
    """Ranks that wait for one another."""

    def connect(self, path: str) -> None:
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{path}",
            rank=self.context.rank,
            world_size=self.context.world_size,
        )

    def reduce(self, bad: int, how: str) -> list[float]:
        import torch

        if self.context.rank == bad and how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.context.rank == bad:
            raise ValueError("the cause")
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        return [float(item) for item in total]

    @stage
    def train(self, chunks: Iterator[list[int]], *, bad: int, how: str) -> Iterator[list[float]]:
        for _ in chunks:
            pass
        yield self.reduce(bad, how)


class Holder(Worker):
    """Holds memory in a circle of references, and may refuse to close."""

    def __init__(self, context: WorkerContext, *, megabytes: int, stubborn: bool = False) -> None:
        super().__init__(context)
        self.data = bytearray(b"x") * (megabytes * 2**20)
        self.itself = self
        self.stubborn = stubborn

    def resident_mb(self) -> float:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def close(self) -> None:
        if self.stubborn:
            raise ValueError("will not close")


class Mute(Worker):
    """Does not close in time."""

    def close(self) -> None:
        time.sleep(60)


class NotAWorker:
    pass


class Lodger(Worker):
    """Shares the device: says who was on it, and refuses to work while it is off it."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.here = True
        self.moves: list[str] = []

    def onload(self) -> None:
        self.here = True
        self.moves.append("on")

    def offload(self) -> None:
        self.here = False
        self.moves.append("off")

    def present(self) -> list[str]:
        """Who is on the device."""
        peers = self.context.peers.values()
        return sorted(peer.context.name for peer in peers if isinstance(peer, Lodger) and peer.here)

    def with_peer(self, name: str) -> list[str]:
        with self.beside(name):
            return self.present()

    @on_host
    def moved(self) -> list[str]:
        return self.moves

    @stage
    def pass_on(self, chunks: Iterator[list[int]]) -> Iterator[list[list[str]]]:
        for _ in chunks:
            yield [self.present()]

    def fail(self) -> None:
        raise ValueError("on purpose")
