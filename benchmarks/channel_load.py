"""Load on channels: nothing is lost or doubled, memory stays bounded, and deaths are named in time.

    python benchmarks/channel_load.py                                      # the whole size, minutes
    python benchmarks/channel_load.py --items 10000 --gigabytes 1 --kills 3

Four producers and four consumers first pass small items, then tensors. Then producers or consumers are
killed at random moments, one a round: everybody else has to get an error that names the victim. Any
mismatch ends the command with an error; the last line of its output is a JSON object with the figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
from common import machine, say

from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.remote import ChannelHandle
from rlinf_core.errors import ConsumerDied, ProducerDied

SIDE = 4  # producers, and consumers
MB = 2**20
CAPACITY = 256 * MB
LIMIT_S = 5.0  # for an error to reach everybody
SPAWN = multiprocessing.get_context("spawn")


def produce_small(channel: ChannelHandle, rank: int, count: int) -> None:
    """Numbers."""
    with channel.connect(f"producer[{rank}]") as outgoing:
        for number in range(count):
            outgoing.put((rank, number))
        outgoing.finish()


def consume_small(channel: ChannelHandle, results: ChannelHandle, rank: int, count: int) -> None:
    """How often each came here."""
    seen = np.zeros((SIDE, count), np.int32)
    with channel.connect(f"consumer[{rank}]") as incoming, results.connect(f"consumer[{rank}]") as outgoing:
        for producer, number in incoming:
            seen[producer, number] += 1
        outgoing.put(seen)


def produce_tensors(channel: ChannelHandle, rank: int, count: int) -> None:
    """Arrays of 1 to 32 MB with their number at both ends."""
    source = np.ones(32 * MB // 8, np.int64)
    random_ = random.Random(rank)
    with channel.connect(f"producer[{rank}]") as outgoing:
        for number in range(count):
            array = source[: size_of(random_) // 8]
            array[0] = array[-1] = number
            outgoing.put((rank, array))
            array[-1] = 1
        outgoing.finish()


def size_of(random_: random.Random) -> int:
    """Of the next tensor."""
    return random_.choice((1, 2, 4, 8, 16, 32)) * MB


def tensors_for(gigabytes: float) -> tuple[int, float]:
    """How many each producer has to put for so many GB together, and how many it really are."""
    randoms = [random.Random(rank) for rank in range(SIDE)]
    count = size = 0
    while size < gigabytes * 1e9:
        size += sum(map(size_of, randoms))
        count += 1
    return count, size / 1e9


def consume_tensors(channel: ChannelHandle, results: ChannelHandle, rank: int, count: int) -> None:
    """How often each came here whole."""
    seen = np.zeros((SIDE, count), np.int32)
    with channel.connect(f"consumer[{rank}]") as incoming, results.connect(f"consumer[{rank}]") as outgoing:
        for producer, array in incoming:
            if array[0] != array[-1] or array[len(array) // 2] != 1:
                raise SystemExit(f"consumer[{rank}] got a tensor that was overwritten: {array}")
            seen[producer, array[0]] += 1
        outgoing.put(seen)


def all_once(hub: ChannelHub, name: str, produce: Any, consume: Any, count: int) -> dict[str, float]:
    """Run four producers and four consumers, and check that every item came once."""
    channel = hub.create(name, capacity_bytes=CAPACITY, producers=SIDE)
    results = hub.create(f"{name} results", capacity_bytes=4 * CAPACITY)
    jobs = [SPAWN.Process(target=consume, args=(channel, results, rank, count)) for rank in range(SIDE)]
    jobs += [SPAWN.Process(target=produce, args=(channel, rank, count)) for rank in range(SIDE)]
    shared = Shared()
    began = time.perf_counter()
    for job in jobs:
        job.start()
    with results.connect("driver") as incoming:
        seen = sum(incoming.get(timeout_s=3600) for _ in range(SIDE))
    seconds = time.perf_counter() - began
    peak = shared.stop()
    for job in jobs:
        job.join(30)
    hub.drop(name)
    hub.drop(f"{name} results")
    if (seen != 1).any() or any(job.exitcode for job in jobs):
        raise SystemExit(f"{name}: counts {Counter(seen.ravel().tolist())}, {[job.exitcode for job in jobs]}")
    return {"seconds": round(seconds, 1), "shared_peak_mb": round(peak / MB)}


class Shared(threading.Thread):
    """Watches how much shared memory the machine uses beyond what it used before."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = _shared()
        self.peak = 0
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(0.05):
            self.peak = max(self.peak, _shared() - self.before)

    def stop(self) -> int:
        self._stopped.set()
        self.join()
        return self.peak


def _shared() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def endless_producer(channel: ChannelHandle, worker: str, report: Any) -> None:
    """Put until the channel fails, then tell how."""
    outgoing = channel.connect(worker)
    report.send("ready")
    try:
        for number in range(10**9):
            outgoing.put(np.full(random.choice((10, 50_000)), number))
    except Exception as error:
        report.send(describe(error))


def endless_consumer(channel: ChannelHandle, worker: str, report: Any) -> None:
    """Get until the channel fails, then tell how."""
    incoming = channel.connect(worker)
    report.send("ready")
    try:
        for array in incoming:
            if not (array == array[0]).all():
                raise SystemExit(f"{worker} got a tensor that was overwritten: {array}")
    except Exception as error:
        report.send(describe(error))


def describe(error: Exception) -> tuple[str, str, float]:
    """Kind, worker that it names, and when it was raised."""
    return type(error).__name__, getattr(error, "worker", ""), time.monotonic()


def kill_one(hub: ChannelHub, number: int, random_: random.Random) -> float:
    """Kill one of two producers and two consumers; the seconds until the last of the others knew it."""
    channel = hub.create(f"victims {number}", capacity_bytes=4 * MB)
    workers: dict[str, tuple[Any, Any]] = {}
    for rank in range(2):
        for role, job in (("producer", endless_producer), ("consumer", endless_consumer)):
            worker = f"{role}[{rank}]"
            here, there = SPAWN.Pipe(duplex=False)
            process = SPAWN.Process(target=job, args=(channel, worker, there))
            process.start()
            there.close()
            workers[worker] = process, here
    for _, report in workers.values():
        hear(report, 60.0)
    victim = random_.choice(sorted(workers))
    died = ProducerDied if victim.startswith("producer") else ConsumerDied
    time.sleep(random_.uniform(0.0, 0.2))
    killed = time.monotonic()
    workers[victim][0].kill()
    told = [hear(report, LIMIT_S) for worker, (_, report) in workers.items() if worker != victim]
    late = max(when for _, _, when in told) - killed
    if {(kind, worker) for kind, worker, _ in told} != {(died.__name__, victim)} or late > LIMIT_S:
        raise SystemExit(f"killed {victim}: heard {told} after {late:.2f} s")
    for process, report in workers.values():
        process.join(LIMIT_S)
        process.close()  # raises where it still runs
        report.close()
    hub.drop(f"victims {number}")
    return late


def hear(report: Any, limit_s: float) -> Any:
    """What a process tells; an error after a while."""
    if not report.poll(limit_s):
        raise SystemExit(f"a process has told nothing for {limit_s:g} s")
    return report.recv()


def kills(hub: ChannelHub, rounds: int) -> dict[str, float]:
    """Kill so many workers, one a round, and check that nothing is left behind."""
    random_ = random.Random(0)
    kill_one(hub, -1, random_)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    late = [kill_one(hub, number, random_) for number in range(rounds)]
    gc.collect()
    time.sleep(0.5)  # the hub's thread hangs up
    after = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    if after[0] > before[0] or after[1] - before[1]:
        raise SystemExit(f"left behind: {after[0] - before[0]} descriptors, {after[1] - before[1]}")
    return {"kills": rounds, "slowest_error_s": round(max(late, default=0.0), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="small items")
    parser.add_argument("--gigabytes", type=float, default=100.0, help="of tensors")
    parser.add_argument("--kills", type=int, default=50, help="rounds")
    args = parser.parse_args()
    with ChannelHub() as hub:
        small = all_once(hub, "small", produce_small, consume_small, args.items // SIDE)
        say(f"{args.items} small items: {small}")
        count, gigabytes = tensors_for(args.gigabytes)
        tensors = all_once(hub, "tensors", produce_tensors, consume_tensors, count)
        say(f"{gigabytes:.2f} GB of tensors: {tensors}")
        deaths = kills(hub, args.kills)
        say(f"{deaths}")
    result = {
        "items_per_s": round(args.items / small["seconds"]),
        "tensor_gb_per_s": round(gigabytes / tensors["seconds"], 2),
        "shared_peak_mb": max(small["shared_peak_mb"], tensors["shared_peak_mb"]),
        **deaths,
    }
    print(json.dumps({**result, "machine": machine()}))


if __name__ == "__main__":
    main()
