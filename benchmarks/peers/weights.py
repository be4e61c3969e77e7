"""Other ways for the same weights from one process to another: gloo, Ray's object store, safetensors files.

`python weights.py gloo|ray|memory|disk BYTES SYNCS copy|use [FOLDER]` prints the seconds of each sync as one
list. The receiver copies into touched memory of its own, or uses what it was given; with gloo that is one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gloo_rank(rank: int, port: int, size: int, syncs: int, pipe: Connection | None) -> None:
    """One of two ranks; the second tells how long each broadcast took."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    weights = torch.full((size // 2,), float(rank), dtype=torch.bfloat16)
    times = []
    for _ in range(syncs):
        dist.barrier()
        began = time.perf_counter()
        dist.broadcast(weights, 0)
        times.append(time.perf_counter() - began)
    dist.destroy_process_group()
    if pipe is not None:
        pipe.send(times)


def gloo(size: int, syncs: int) -> list[float]:
    """Straight into the receiver's parameters, as one tensor."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    port = free_port()
    ranks = [
        context.Process(target=gloo_rank, args=(rank, port, size, syncs, there if rank else None))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    if not here.poll(300):
        raise SystemExit("gloo: no answer within 300 s")
    times: list[float] = here.recv()
    for rank in ranks:
        rank.join(30)
    return times


def ray_store(size: int, syncs: int, how: str) -> list[float]:
    """Put by one process, got by an actor."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=5 * size // 2)

    @ray.remote
    class Receiver:
        """Has parameters."""

        def __init__(self, size: int) -> None:
            self.weights = np.full(size, 1, np.uint8)

        def take(self, sent: np.ndarray) -> None:
            """Copy, or look at both ends."""
            if how == "copy":
                self.weights[:] = sent
            else:
                self.weights = sent
                _ = sent[0], sent[-1]

    receiver = Receiver.remote(size)  # type: ignore[attr-defined]
    weights = np.full(size, 2, np.uint8)
    times = []
    for _ in range(syncs):
        began = time.perf_counter()
        ray.get(receiver.take.remote(ray.put(weights)))
        times.append(time.perf_counter() - began)
    ray.shutdown()
    return times


def file_reader(path: str, size: int, how: str, pipe: Connection) -> None:
    """Load what is there whenever told to."""
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    weights = torch.full((size // 2,), 1.0, dtype=torch.bfloat16)
    pipe.send(None)
    while pipe.recv():
        loaded = load_file(path)["weights"]
        weights = weights.copy_(loaded) if how == "copy" else loaded
        pipe.send(None)


def files(size: int, syncs: int, how: str, folder: str) -> list[float]:
    """One process writes a file, the other maps it and copies."""
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    path = str(Path(folder) / f"weights-{os.getpid()}.safetensors")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reader = context.Process(target=file_reader, args=(path, size, how, there))
    reader.start()
    weights = torch.full((size // 2,), 2.0, dtype=torch.bfloat16)
    times = []
    try:
        here.recv()
        for _ in range(syncs):
            began = time.perf_counter()
            save_file({"weights": weights}, path)
            here.send(True)
            here.recv()
            times.append(time.perf_counter() - began)
        here.send(False)
        reader.join(30)
    finally:
        reader.kill()
        Path(path).unlink(missing_ok=True)
    return times


def main() -> None:
    """Command line."""
    kind, size, syncs, how, *folder = sys.argv[1:]
    if kind == "gloo":
        times = gloo(int(size), int(syncs))
    elif kind == "ray":
        times = ray_store(int(size), int(syncs), how)
    else:
        times = files(int(size), int(syncs), how, folder[0])
    print(json.dumps(times))


if __name__ == "__main__":
    main()
