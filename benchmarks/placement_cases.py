"""Inputs of RLinf's auto-placement tool, what it chooses for them, and the same inputs in our terms.

The tool (github.com/RLinf/RLinf, `toolkits/auto_placement`) knows one time of each component, measured
with all GPUs, and estimates the rest: a rollout takes as long on fewer GPUs while these have places for
all requests, else in proportion; training and inference on 1/s of the GPUs take s / (1 + s/10) times as
long (s/10 between 0.1 and 0.9) (`node.py`). Components that share GPUs add up; apart they pass on one
group of responses at a time (`placement.py`).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.schedule.curve import Table
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.profile import Profile, WrittenCurve

PEER = Path(__file__).resolve().parent / "peers" / "rlinf_placement.py"
BUSY = 128  # requests an engine has places for, from which a tenth of them is kept free


@dataclass(frozen=True)
class Case:
    """What the tool reads, and its answer: seconds it expects of a step, GPUs of each component."""

    name: str
    gpus: int
    seconds: Mapping[str, float]  # of each component with all GPUs, in flow order
    groups: int  # of a step
    running: int  # requests an engine has places for
    chosen_s: float
    chosen: Mapping[str, tuple[int, int]]  # first and last GPU
    group_size: int = 16
    mini_batches: int = 1
    model_parallel: Mapping[str, int] | None = None

    def size(self, name: str) -> int:
        """A component's model-parallel size."""
        return (self.model_parallel or {}).get(name, 1)

    def seconds_on(self, name: str, gpus: int) -> float:
        """The tool's estimate."""
        scale = self.gpus / gpus
        if gpus == self.gpus:
            return self.seconds[name]
        if name != "rollout":
            return self.seconds[name] * scale / (1 + min(0.9, max(0.1, scale / 10)))
        places = math.ceil(self.running * (0.9 if self.running >= BUSY else 1.0))
        fits = gpus // self.size(name) * places >= self.groups * self.group_size
        return self.seconds[name] * (1.0 if fits else scale)

    def allows(self, name: str, gpus: int) -> bool:
        """Whether the tool lets a component have so many GPUs: training needs whole groups a rank."""
        ranks, rest = divmod(gpus, self.size(name))
        batch = self.groups * self.group_size // self.mini_batches
        whole = name == "rollout" or gpus == self.gpus or batch % (ranks * self.group_size) == 0
        return ranks > 0 and rest == 0 and whole


CASES = (
    Case("2gpu", 2, {"rollout": 100.0, "actor": 60.0}, 64, 2048, 160.0, {"rollout": (0, 1), "actor": (0, 1)}),
    Case("4gpu", 4, {"rollout": 88.1, "actor": 39.2}, 64, 64, 127.3, {"rollout": (0, 3), "actor": (0, 3)}),
    Case(  # its own test, tests/unit_tests/test_auto_placement.py
        "128gpu",
        128,
        {"rollout": 224.0, "inference": 10.0, "actor": 101.0},
        512,
        128,
        289.0957,
        {"rollout": (0, 79), "inference": (80, 95), "actor": (96, 127)},
        mini_batches=4,
        model_parallel={"inference": 2, "actor": 2},
    ),
)


def run_tool(folder: Path) -> list[dict[str, Any]]:
    """The tool's answers, from a checkout of RLinf. Any: JSON values."""
    asked = [asdict(case) | {"model_parallel": {n: case.size(n) for n in case.seconds}} for case in CASES]
    done = subprocess.run(
        [sys.executable, str(PEER), str(folder)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{folder}: the placement tool failed:\n{done.stderr[-3000:]}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def problem(case: Case) -> tuple[Graph, Profile, Cluster]:
    """A case in our terms: samples are groups cut so finely that one keeps all GPUs busy, as the tool has
    it, links cost nothing, and a count that the tool forbids is no faster than the next lower one."""
    names = list(case.seconds)
    components = tuple(Component(name, (case.size(name),), lockstep=True) for name in names)
    edges = tuple(Edge(*pair, quantum=case.gpus) for pair in pairwise(names))
    samples = case.groups * case.gpus
    curves = tuple(
        WrittenCurve(name, Table(samples, _times(case, name)), "gpu", case.size(name)) for name in names
    )
    cluster = Cluster((Node(case.gpus, "gpu"),), latency_s=0.0)
    return Graph(components, edges, samples), Profile(curves=curves), cluster


def _times(case: Case, name: str) -> tuple[tuple[int, float], ...]:
    times: list[tuple[int, float]] = []
    for gpus in range(case.size(name), case.gpus + 1):
        if case.allows(name, gpus):
            times.append((gpus, case.seconds_on(name, gpus)))
        elif times:
            times.append((gpus, times[-1][1]))
    return tuple(times)


def tools_cost(case: Case, plan: Plan) -> float | None:
    """A plan's seconds by the tool's cost model; None for a hybrid one, which it does not know."""
    if plan.mode == "hybrid":
        return None
    times = [case.seconds_on(name, len(plan.assignments[name].devices)) for name in case.seconds]
    if plan.mode == "collocated":
        return sum(times)
    return sum(times) / case.groups + max(times) * (case.groups - 1) / case.groups
