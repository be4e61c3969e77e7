"""Claim: weights reach a rollout process of the same machine at half of memcpy's speed or more.

A model in the shapes of Qwen2-0.5B (494 million parameters, bfloat16) goes from an actor to a rollout in
another process by `WeightSync`, as in a run: the actor's parameters change in place, and a sync is timed on
the driver from its call to its return, when the rollout has the version. After every sync, what the rollout
has is compared with what the actor has. Keys: `bandwidth_over_memcpy` (bytes of the weights by the seconds
of a sync, where the rollout copies into parameters of its own, over one thread's copy of as many bytes
between touched memory of one process), `adopted_ms` (the same where the rollout takes the memory that it is
shown for its parameters, as the engine `hf` does), `taken_over_memcpy` (where the version is written first
and copied by the rollout later, as when training is asynchronous). Peers are gloo's broadcast between two
processes, Ray's object store, and a safetensors file that is written and read, in /dev/shm or on disk:
`copied_over_fastest_peer` where each receiver copies into its parameters, `over_fastest_peer` where each
uses what it was given. `patch_...`: what is sent to another machine after one step of 1e-6 in the
parameters' float32 copies, measured on four layers and scaled to all parameters: the share of entries that
changed, bytes over those of the whole, milliseconds to find, encode, apply and check them. `control_ms`:
the median time of small messages on one connection of the network while a message of a gigabyte passes,
which takes `control_behind_ms`. `gathered_over_divided`: the time of a sync from two ranks that have half of
every weight each, gathered by gloo and written by one rank, over that where each writes its own half.
`optimizer_ms`: an AdamW step of as many float32 parameters, measured on an eighth of them: what a sync could
be hidden behind.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from common import CACHE, PEER_PYTHON, finish, say
from torch import nn
from weight_models import shapes

from rlinf_core.api import HostSpec, WeightBucket
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.cluster.devices import free_port
from rlinf_core.comm.network import listen_at, stay_alert
from rlinf_core.comm.patches import Differ, Patched
from rlinf_core.comm.wire import Wire, pack
from rlinf_core.roles.weight_sync import WeightSync
from rlinf_core.worker import WorkerGroup

SYNCS = 5  # timed ones of a round
LIMIT_S = 300
PATCHED = tuple(f"model.layers.{number}." for number in range(4))
PEER = Path(__file__).parent / "peers" / "weights.py"


class Ours:
    """An actor and a rollout of a run, and their sync."""

    def __init__(self, *, adopts: bool) -> None:
        engine = LocalEngine(LocalConfig())
        self.engine = engine
        actor, rollout = engine.start([HostSpec("actor"), HostSpec("rollout")])
        self.actor = WorkerGroup.create("actor", "weight_models:Actor", [actor], {}, ["cpu"], 0)
        self.rollout = WorkerGroup.create(
            "rollout", "weight_models:Rollout", [rollout], {"adopts": adopts}, ["cpu"], 0
        )
        self.sync = WeightSync(self.actor, self.rollout)

    @classmethod
    def divided(cls, *, gathers: bool) -> Ours:
        """With an actor of two ranks."""
        made = cls.__new__(cls)
        made.engine = LocalEngine(LocalConfig())
        *actors, rollout = made.engine.start([HostSpec("actor0"), HostSpec("actor1"), HostSpec("rollout")])
        options = {"gathers": gathers}
        made.actor = WorkerGroup.create(
            "actor",
            "weight_models:DividedActor",
            actors,
            options,
            ["cpu"] * 2,
            0,
            master=f"127.0.0.1:{free_port()}",
        )
        made.rollout = WorkerGroup.create(
            "rollout", "weight_models:Rollout", [rollout], {"adopts": True}, ["cpu"], 0
        )
        made.sync = WeightSync(made.actor, made.rollout)
        return made

    def seconds(self, share: float = 0.01, *, taken: bool = False) -> float:
        """Of one sync, after which both hold the same. Raises `SystemExit` where they do not."""
        sent = self.actor.call("train", share).wait()[0]
        began = time.perf_counter()
        if taken:
            self.sync.give(self.sync.take())
        else:
            self.sync()
        took = time.perf_counter() - began
        if self.rollout.call("digest").wait()[0] != sent:
            raise SystemExit("the rollout does not hold what the actor sent")
        return took

    def close(self) -> None:
        """End its processes."""
        self.engine.stop()


class Memcpy:
    """One thread's copy of all weights from touched memory to touched memory."""

    def __init__(self) -> None:
        self.source = np.full(sum(tensor_bytes()), 1, np.uint8)
        self.target = np.full(len(self.source), 2, np.uint8)

    def seconds(self) -> float:
        """Of one copy."""
        began = time.perf_counter()
        self.target[:] = self.source
        return time.perf_counter() - began


def tensor_bytes() -> list[int]:
    """Of every parameter."""
    return [2 * int(np.prod(shape)) for shape in shapes().values()]


def patch_figures() -> dict[str, float]:
    """Of one step, by changed entries."""
    count = sum(int(np.prod(shape)) for name, shape in shapes().items() if name.startswith(PATCHED))
    torch.manual_seed(0)
    weights, step = 0.02 * torch.randn(count), torch.randn(count).sign_()
    differ, patched = Differ(), Patched()
    times = []
    for version in range(1 + SYNCS):
        differ.begin(version, whole=version == 0)
        began = time.perf_counter()
        patched.open(differ.write(WeightBucket(version, {"weights": weights}, last=True), "bfloat16"))
        times.append(time.perf_counter() - began)
        weights.add_(step, alpha=1e-6)
    changes = differ.changes
    scale = sum(tensor_bytes()) / (2 * count)
    return {
        "patch_share": changes.changed / changes.entries,
        "patch_bytes": changes.sent_bytes / (2 * count),
        "patch_ms": 1e3 * scale * statistics.median(times[1:]),
    }


def divided_figures() -> dict[str, float]:
    """Of an actor of two ranks."""
    took = {}
    for gathers in (False, True):
        pair = Ours.divided(gathers=gathers)
        took[gathers] = statistics.median([pair.seconds() for _ in range(2 + SYNCS)][2:])
        pair.close()
    return {"gathered_over_divided": took[True] / took[False], "divided_ms": 1e3 * took[False]}


def optimizer_ms() -> float:
    """Of a step of AdamW."""
    part = 8
    weights = nn.Parameter(torch.zeros(sum(tensor_bytes()) // 2 // part))
    weights.grad = torch.ones_like(weights)
    optimizer = torch.optim.AdamW([weights], fused=True)
    times = []
    for _ in range(1 + SYNCS):
        began = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return 1e3 * part * statistics.median(times[1:])


def control_ms(size: int = 2**30) -> dict[str, float]:
    """How long small messages take on a connection of the network while one of so many bytes passes."""
    with listen_at("127.0.0.1") as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    for sock in (here, there):
        stay_alert(sock, 5.0)
    left, right = Wire(here), Wire(there)
    large = pack(np.zeros(size, np.uint8))
    over = threading.Event()

    def send_large() -> None:
        left.send(1, 0, large)
        over.set()

    def send_small() -> None:
        while not over.wait(0.02):
            left.send(2, 0, pack(time.perf_counter()))
        left.send(3, 0, pack(None))

    began = time.perf_counter()
    for function in (send_large, send_small):
        threading.Thread(target=function).start()
    times: list[float] = []
    whole = 0.0
    while (message := right.receive()) is not None and message.kind != 3:
        if message.kind == 2:
            times.append(time.perf_counter() - message.load())
        elif message.kind == 1:
            whole = time.perf_counter() - began
    left.close()
    right.close()
    return {"control_ms": 1e3 * statistics.median(times), "control_behind_ms": 1e3 * whole}


def peer_seconds(kind: str, how: str, *folder: str) -> list[float]:
    """Of each sync of a peer but the first; nothing where it is not installed."""
    python = str(PEER_PYTHON) if kind == "ray" and PEER_PYTHON.exists() else sys.executable
    command = [
        python,
        str(PEER),
        kind,
        str(sum(tensor_bytes())),
        str(1 + (1 if kind == "disk" else 3)),
        how,
        *folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        say(f"no figures of {kind}: {lines[-1] if lines else done.returncode}")
        return []
    times: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {}
    copies, takes, later = Ours(adopts=False), Ours(adopts=True), Ours(adopts=False)
    ways: dict[str, Callable[[], float]] = {
        "memcpy": Memcpy().seconds,
        "copied": copies.seconds,
        "adopted": takes.seconds,
        "taken": lambda: later.seconds(taken=True),
    }
    for _ in range(3):  # memory that is touched for the first time
        for once in ways.values():
            once()
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as disk:
        peers: dict[str, tuple[str, ...]] = {
            "gloo": ("gloo", "copy"),  # straight into the receiver's parameters
            "ray_copy": ("ray", "copy"),
            "ray_use": ("ray", "use"),
            "memory_copy": ("memory", "copy", "/dev/shm"),
            "memory_use": ("memory", "use", "/dev/shm"),
            "disk_use": ("disk", "use", disk),
        }
        for number in range(rounds):
            ours: dict[str, list[float]] = {}
            for _ in range(SYNCS):
                for name, once in ways.items():
                    ours.setdefault(name, []).append(once())
            took = {name: statistics.median(each) for name, each in ours.items()}
            for name, words in peers.items():
                found = peer_seconds(*words)
                if found:
                    took[name] = statistics.median(found)
            for name, seconds in took.items():
                times.setdefault(name, []).append(seconds)
            say(f"round {number}: " + ", ".join(f"{name} {each:.3f} s" for name, each in took.items()))
    for pair in (copies, takes, later):
        pair.close()
    finish(figures({name: statistics.median(each) for name, each in times.items()}), "rlinf-core", "torch")


def figures(medians: dict[str, float]) -> dict[str, float]:
    """Ratios, and what they are made of."""
    result = {
        "bandwidth_over_memcpy": medians["memcpy"] / medians["copied"],
        "over_fastest_peer": fastest(medians, "_use") / medians["adopted"],
        "copied_over_fastest_peer": fastest(medians, "_copy") / medians["copied"],
        "taken_over_memcpy": medians["memcpy"] / medians["taken"],
        "adopted_ms": 1e3 * medians["adopted"],
        **patch_figures(),
        **control_ms(),
        **divided_figures(),
        "optimizer_ms": optimizer_ms(),
        "bytes": sum(tensor_bytes()),
        **{f"{name}_seconds": seconds for name, seconds in medians.items()},
    }
    return {name: round(value, 4) for name, value in result.items()}


def fastest(medians: dict[str, float], ending: str) -> float:
    """Of the peers."""
    return min(seconds for name, seconds in medians.items() if name.endswith(ending) or name == "gloo")


if __name__ == "__main__":
    main()
