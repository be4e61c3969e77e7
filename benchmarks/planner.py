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
from placement_cases import CASES, Case, problem, run_tool, tools_cost

from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.search import search
from rlinf_core.testing.plans import brute_force, large_problem, random_problem

MODES = Path(__file__).resolve().parent / "modes.py"
ROUNDING = 1e-9
SMALL = ((2, 8), (3, 4), (3, 8), (4, 4))  # components and devices; all plans can be tried
LARGE = ((3, False), (4, True), (5, False), (5, True))  # components, and whether there is a cycle


def optimality_gap(graphs: int) -> float:
    """Largest relative distance of the search's fastest plan from the fastest of all."""
    largest = 0.0
    for seed in range(graphs):
        problem = random_problem(seed, *SMALL[seed % len(SMALL)])
        best = brute_force(problem)
        try:
            found = search(problem.graph, problem.profile, problem.cluster).least_s
        except ConfigError:
            found = math.inf
        if found != best:
            largest = max(largest, abs(found / best - 1))
    say(f"{graphs} random problems: largest gap {largest:.1e}")
    return largest if largest > ROUNDING else 0.0


def search_seconds(devices: int) -> float:
    """Of the slowest search for so many devices: 3 to 5 components, with and without a cycle, one type of
    device and two."""
    slowest = 0.0
    for components, cycle in LARGE:
        for two_types in (False, True):
            problem = large_problem(devices, components, two_types, cycle)
            began = time.perf_counter()
            best = search(problem.graph, problem.profile, problem.cluster).best
            seconds = time.perf_counter() - began
            kinds = "two types" if two_types else "one type"
            say(f"{devices} devices of {kinds}, {components} components: {seconds:.2f} s; {shown(best)}")
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


def beside_the_tool(folder: Path | None) -> dict[str, float]:
    """The tool's seconds over ours, by its cost model where that knows our plan."""
    answers = run_tool(folder) if folder else [None] * len(CASES)
    ratios = {}
    for case, answer in zip(CASES, answers, strict=True):
        theirs, placed = (answer["seconds"], answer["devices"]) if answer else (case.chosen_s, case.chosen)
        best = search(*problem(case)).best
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
    parser.add_argument("--graphs", type=int, default=200, help="random problems that are solved twice")
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
