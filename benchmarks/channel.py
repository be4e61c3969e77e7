"""Claim: an item passes between processes in less than 0.2 ms, and tensors at half of memcpy's speed or more.

Two processes exchange items through a channel whose hub is in a third, which is how workers do it; beside
it `multiprocessing.Queue`, Ray's object store, and numpy's copy of as many bytes. Keys: `small_item_ms` (one
put and get, half of a round trip), `tensor_over_memcpy` (the worse of the 4 MB and the 64 MB tensor;
the consumer looks at both ends of a tensor; memcpy fills touched memory as large as the channel, in turn,
as queued tensors do), `tensor_4mb_over_memcpy_in_cache` (beside a copy to the same place again and again,
which the processor's cache serves: there the claim does not hold), `in_place_over_memcpy` (64 MB tensors
that lie in the channel's memory already). The other keys are what these are made of, in ms and GB/s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
from common import PEER_PYTHON, finish, say

from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.remote import ChannelHandle

MB = 2**20
LIMIT_S = 120
CAPACITY = 256 * MB  # of a channel
SIZES = (4 * MB, 64 * MB)
PEER = Path(__file__).parent / "peers" / "ray_channel.py"
Rates = dict[str, list[float]]


def echo(source: ChannelHandle, sink: ChannelHandle) -> None:
    """Put back what comes."""
    with source.connect("echo") as incoming, sink.connect("echo") as outgoing:
        for item in incoming:
            outgoing.put(item)


def ping(source: ChannelHandle, sink: ChannelHandle, count: int, result: Any) -> None:
    """The median seconds of an item's way there and back."""
    with source.connect("ping") as outgoing, sink.connect("ping") as incoming:
        result.put(round_trip(outgoing.put, incoming.get, count))
        outgoing.close()


def round_trip(put: Callable[[Any], Any], get: Callable[[], Any], count: int) -> float:
    times = []
    for number in range(count):
        began = time.perf_counter()
        put({"number": number})
        get()
        times.append(time.perf_counter() - began)
    return statistics.median(times[count // 10 :])


def produce(channel: ChannelHandle, size: int, count: int, in_place: bool) -> None:
    """Put so many arrays of so many bytes."""
    sources = [np.full(size, number, np.uint8) for number in range(2)]
    with channel.connect("producer") as outgoing:
        for number in range(count):
            if in_place:
                outgoing.put(outgoing.empty((size,), np.uint8))
            else:
                outgoing.put(sources[number % 2])
        outgoing.close()


def consume(channel: ChannelHandle, size: int, result: Any) -> None:
    """Bytes a second that came, without the first items."""
    with channel.connect("consumer") as incoming:
        result.put(rate_of(incoming, size))


def rate_of(items: Any, size: int) -> float:
    times = []
    for array in items:
        if array is None:
            break
        _ = array[0], array[-1]
        times.append(time.perf_counter())
        del array
    skipped = len(times) // 4
    return (len(times) - 1 - skipped) * size / (times[-1] - times[skipped])


def queue_produce(queue: Any, size: int, count: int) -> None:
    """The same through a queue."""
    sources = [np.full(size, number, np.uint8) for number in range(2)]
    for number in range(count):
        queue.put(sources[number % 2])
    queue.put(None)


def queue_consume(queue: Any, size: int, result: Any) -> None:
    """The same from a queue."""
    result.put(rate_of((queue.get() for _ in itertools.count()), size))


def queue_echo(source: Any, sink: Any) -> None:
    """Put back what comes."""
    for item in iter(source.get, None):
        sink.put(item)


def queue_ping(source: Any, sink: Any, count: int, result: Any) -> None:
    """The median seconds there and back."""
    result.put(round_trip(source.put, sink.get, count))
    source.put(None)


class Measure:
    """Starts two processes at a time and takes the figure that one of them gives."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.hub = ChannelHub()
        self.made = 0

    def channel(self) -> ChannelHandle:
        self.made += 1
        return self.hub.create(f"channel {self.made}", capacity_bytes=CAPACITY)

    def both(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> float:
        """Each a function and its arguments; the second gets a queue for its result."""
        result = self.context.Queue()
        processes = [
            self.context.Process(target=first[0], args=first[1:]),
            self.context.Process(target=second[0], args=(*second[1:], result)),
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT_S)
            if process.exitcode != 0:
                raise SystemExit(f"{process.name} ended with {process.exitcode}")
        return float(result.get(timeout=5))

    def small(self, count: int) -> float:
        """Seconds of one put and get between two workers."""
        there, back = self.channel(), self.channel()
        return self.both((echo, there, back), (ping, there, back, count)) / 2

    def small_driver(self, count: int) -> float:
        """The same between a worker and the process of the hub."""
        there, back = self.channel(), self.channel()
        process = self.context.Process(target=echo, args=(there, back))
        process.start()
        with there.connect("driver") as outgoing, back.connect("driver") as incoming:
            seconds = round_trip(outgoing.put, incoming.get, count)
            outgoing.close()
            process.join(30)
        return seconds / 2

    def small_queue(self, count: int) -> float:
        """The same through two queues."""
        there, back = self.context.Queue(), self.context.Queue()
        return self.both((queue_echo, there, back), (queue_ping, there, back, count)) / 2

    def tensors(self, size: int, count: int, in_place: bool = False) -> float:
        """Bytes a second from one worker to another."""
        channel = self.channel()
        return self.both((produce, channel, size, count, in_place), (consume, channel, size))

    def tensors_queue(self, size: int, count: int) -> float:
        """The same through a queue."""
        queue = self.context.Queue(maxsize=4)
        return self.both((queue_produce, queue, size, count), (queue_consume, queue, size))


def memcpy(size: int, count: int, targets: int) -> float:
    """Bytes a second of numpy's copy into touched memory, one target after the other."""
    sources = [np.full(size, number, np.uint8) for number in range(2)]
    memory = [np.zeros(size, np.uint8) for _ in range(targets)]
    times = []
    for number in range(count):
        began = time.perf_counter()
        memory[number % targets][:] = sources[number % 2]
        times.append(time.perf_counter() - began)
    return size / statistics.median(times)


def ray_figures(small: int) -> dict[str, float | None]:
    """What Ray needs, measured in the peers' environment; nothing where it is not installed."""
    names = ["ray_small_item_ms", *(f"ray_{size // MB}mb_gb_per_s" for size in SIZES)]
    has_ray = (
        PEER_PYTHON.exists()
        and not subprocess.run(
            [str(PEER_PYTHON), "-c", "import ray"], capture_output=True, check=False
        ).returncode
    )
    if not has_ray:
        say("no Ray to compare with: `make .venv/peers` installs it")
        return dict.fromkeys(names)
    done = subprocess.run(
        [str(PEER_PYTHON), str(PEER), str(small), *map(str, SIZES)],
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    return dict(zip(names, figures, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", type=int, default=3000, help="round trips of a small item a round")
    parser.add_argument("--bytes", type=int, default=3 * 2**30, help="of tensors of one size a round")
    args = parser.parse_args()
    measure = Measure()
    found: Rates = {}
    for number in range(args.rounds):
        took = {
            "small_item_ms": 1e3 * measure.small(args.small),
            "small_item_driver_ms": 1e3 * measure.small_driver(args.small),
            "queue_small_item_ms": 1e3 * measure.small_queue(args.small),
        }
        for size in SIZES:
            count = max(20, args.bytes // size)
            took[f"{size // MB}mb_gb_per_s"] = measure.tensors(size, count) / 1e9
            took[f"queue_{size // MB}mb_gb_per_s"] = measure.tensors_queue(size, max(20, count // 8)) / 1e9
            took[f"memcpy_{size // MB}mb_gb_per_s"] = (
                memcpy(size, max(20, count // 4), CAPACITY // size) / 1e9
            )
        took["memcpy_4mb_in_cache_gb_per_s"] = memcpy(4 * MB, 200, 1) / 1e9
        took["in_place_64mb_gb_per_s"] = measure.tensors(64 * MB, 500, in_place=True) / 1e9
        for name, value in took.items():
            found.setdefault(name, []).append(value)
        say(f"round {number}: " + ", ".join(f"{name} {value:.3f}" for name, value in took.items()))
    measure.hub.close()
    medians = {name: statistics.median(values) for name, values in found.items()}
    labels = [f"{size // MB}mb" for size in SIZES]
    ratios = {label: medians[f"{label}_gb_per_s"] / medians[f"memcpy_{label}_gb_per_s"] for label in labels}
    in_cache = medians["4mb_gb_per_s"] / medians["memcpy_4mb_in_cache_gb_per_s"]
    result = {
        "small_item_ms": round(medians.pop("small_item_ms"), 4),
        "tensor_over_memcpy": round(min(ratios.values()), 3),
        **{f"tensor_{label}_over_memcpy": round(ratio, 3) for label, ratio in ratios.items()},
        "tensor_4mb_over_memcpy_in_cache": round(in_cache, 3),
        "in_place_over_memcpy": round(medians["in_place_64mb_gb_per_s"] / medians["memcpy_64mb_gb_per_s"], 1),
        **{name: round(value, 4) for name, value in medians.items()},
        **ray_figures(args.small),
    }
    finish(result, "rlinf-core", "numpy")


if __name__ == "__main__":
    main()
