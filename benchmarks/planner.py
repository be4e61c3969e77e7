"""How well the planner plans, and how fast.

`optimality_gap`: its plans against the best of all, found by trying every one, on random small problems.
`search_s_*`: seconds of one search. `rlinf_*`: RLinf's published auto-placement tool on the same inputs; its
choices are run with `--rlinf DIR` (a checkout of github.com/RLinf/RLinf), otherwise those that it made.
`prediction_error`: of the two real jobs of `modes.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from common import ROOT, finish, say
from every_plan import fastest, random_problem
from placement_cases import CASES, Case, problem, run_tool, tools_cost

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.curve import Coefficients
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.profile import MemoryUse, Profile, WrittenCurve
from rlinf_core.schedule.search import search

MODES = Path(__file__).resolve().parent / "modes.py"
ROUNDING = 1e-9
SPEEDS = {"H100": 1.0, "A100": 2.2}  # seconds of each type, relative


def cluster_of(devices: int, types: tuple[str, ...]) -> Cluster:
    """Nodes of eight devices, the types in equal parts."""
    nodes = devices // 8 // len(types)
    return Cluster(tuple(Node(8, kind, 80e9) for kind in types for _ in range(nodes)))


def large_problems() -> dict[str, Graph]:
    """A text flow with a reference of its own, and an embodied one with a cycle."""
    text = Graph(
        (
            Component("rollout", (1, 2, 4)),
            Component("reference", (1, 2, 4)),
            Component("actor", (2, 4, 8), lockstep=True),
        ),
        (Edge("rollout", "reference", quantum=8), Edge("reference", "actor", quantum=8)),
        samples=65536,
        syncs=(("actor", "rollout"),),
    )
    embodied = Graph(
        (
            Component("environment"),
            Component("rollout"),
            Component("reference"),
            Component("critic"),
            Component("actor", lockstep=True),
        ),
        (
            Edge("environment", "rollout"),
            Edge("rollout", "reference"),
            Edge("rollout", "critic"),
            Edge("reference", "actor", barrier=True),
            Edge("critic", "actor", barrier=True),
        ),
        samples=32768,
        cycles=(("environment", "rollout"),),
        syncs=(("actor", "rollout"),),
    )
    return {"text": text, "embodied": embodied}


TERMS = {
    "environment": Coefficients(2.0, 0.5),
    "rollout": Coefficients(20.0, 0.4, 0.2),
    "reference": Coefficients(0.5, 0.1, 0.05, 0.5),
    "critic": Coefficients(0.5, 0.15, 0.05, 0.5),
    "actor": Coefficients(1.0, 0.5, 0.05, 3.0),
}


def profile_of(graph: Graph) -> Profile:
    """Times, memory and transfers of every component of a graph."""
    names = [part.name for part in graph.components]
    return Profile(
        curves=tuple(
            WrittenCurve(name, TERMS[name].scaled(speed), kind)
            for name in names
            for kind, speed in SPEEDS.items()
        ),
        memory={name: MemoryUse(10e9, 100e9, 1e9, 2.0, 2.0) for name in names},
        sample_bytes=dict.fromkeys(names, 1e5),
        weight_bytes={"actor": 15e9},
        sync_shared_s=0.5,
        sync_apart_s=1.0,
    )


def search_seconds(devices: int) -> float:
    """Of the slowest search for so many devices, over both flows, one type of device and two."""
    slowest = 0.0
    for name, graph in large_problems().items():
        for types in (("H100",), ("H100", "A100")):
            began = time.perf_counter()
            best = search(graph, profile_of(graph), cluster_of(devices, types)).plans[0]
            seconds = time.perf_counter() - began
            say(f"{devices:6} devices, {len(types)} types, {name:9} {seconds:6.2f} s: {shown(best)}")
            slowest = max(slowest, seconds)
    return slowest


def shown(plan: Plan) -> str:
    """A plan on one line."""
    placed = ", ".join(f"{name} {as_ranges(part.devices)}" for name, part in plan.assignments.items())
    return f"{plan.mode}, {placed}, {predicted_s(plan):.1f} s a step"


def predicted_s(plan: Plan) -> float:
    """What the planner expects."""
    if plan.prediction is None:
        raise SystemExit("the planner made a plan without a prediction")
    return plan.prediction.step_s


def optimality_gap(graphs: int) -> float:
    """Largest relative distance of the search's fastest tree from the fastest of all."""
    largest = 0.0
    for seed in range(graphs):
        problem = random_problem(seed)
        best = fastest(problem)
        try:
            found = search(*problem).least_s
        except ConfigError:
            found = math.inf
        if found != best:
            largest = max(largest, abs(found / best - 1))
    say(f"{graphs} random problems: largest gap {largest:.1e}")
    return largest if largest > ROUNDING else 0.0


def beside_the_tool(folder: Path | None) -> dict[str, float]:
    """The tool's seconds over ours, by its cost model where that knows our plan."""
    answers = run_tool(folder) if folder else [None] * len(CASES)
    ratios = {}
    for case, answer in zip(CASES, answers, strict=True):
        theirs, placed = (answer["seconds"], answer["devices"]) if answer else (case.chosen_s, case.chosen)
        best = search(*problem(case)).plans[0]
        ours = tools_cost(case, best) or predicted_s(best)
        ratios[f"rlinf_{case.name}_ratio"] = theirs / ours
        say(f"{described(case)}\n  tool {theirs:.1f} s: {placed}\n  ours {ours:.1f} s: {shown(best)}")
    return ratios


def described(case: Case) -> str:
    """Its inputs on one line."""
    times = ", ".join(f"{name} {seconds:g} s" for name, seconds in case.seconds.items())
    return f"{case.gpus} GPUs, {times}, {case.groups} groups"


def measured_prediction_error() -> float | None:
    """The larger error of the step times predicted for the two jobs of `modes.py`, which this runs; None
    where that benchmark does not exist."""
    if not MODES.exists():
        say("prediction_error: benchmarks/modes.py is not here")
        return None
    done = subprocess.run(
        [sys.executable, str(MODES)], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise SystemExit(f"{MODES.name} failed with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])  # Any: JSON values
    return max(float(result[f"{job}.prediction_error"]) for job in ("llm", "embodied"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=300, help="random problems that are solved twice")
    parser.add_argument("--rlinf", type=Path, help="a checkout of RLinf, whose tool then answers itself")
    parser.add_argument("--no-jobs", action="store_true", help="leave out prediction_error, which takes long")
    options = parser.parse_args()
    result: dict[str, Any] = {"prediction_error": None if options.no_jobs else measured_prediction_error()}
    result["optimality_gap"] = optimality_gap(options.graphs)
    result["graphs"] = options.graphs
    result["search_s_1024"] = search_seconds(1024)
    result["search_s_16384"] = search_seconds(16384)
    finish({**result, **beside_the_tool(options.rlinf)}, "rlinf-core")


if __name__ == "__main__":
    main()
