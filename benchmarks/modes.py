"""Claim: `mode: auto` finds the fastest plan by itself, on two devices, for a language job and a robot job.

Every plan that two devices allow is run for real, and so is what `auto` chose after its measuring steps:
`*.auto_over_best` is the median step time of that plan over the fastest one's (1 = the fastest was found),
`*.prediction_error` how far its predicted step was off, `*.bubble_ratio` the idle share of its device time.
`embodied.hybrid_over_disaggregated` is the throughput of environments and policy on a device each, taking
turns in groups, with training on both, over that of rollout on one device and then training on the other.

The learning rate is 0 and every step has the same requests, so that all plans do the same work. Plans take
turns, in several rounds. On the CPU a device is one pinned core.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from common import finish, say

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.flows.flow import Requests
from rlinf_core.run.compose import RunGraph, make_source, start
from rlinf_core.run.planning import prepare
from rlinf_core.run.steering import Steering
from rlinf_core.run.step_times import step_times
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.pilot import same
from rlinf_core.schedule.plan import Assignment, Plan

SHARED = ("backend=fsdp", "algo=grpo", "trackers=[]", "optimizer.lr=0", "ranks=2", "train.steps=1000")
JOBS = {
    "llm": (
        "model=hf_lm",
        "model.preset=tiny-llama",
        "data=sort_digits",
        "reward=exact",
        "sampling.max_new_tokens=24",
        "train.prompts_per_step=32",
        "algo.group_size=8",
        "train.skip_gradient_free=false",
    ),
    "embodied": (
        "simulator=gymnasium",
        "simulator.id=HalfCheetah-v5",
        "simulator.kwargs={frame_skip: 8}",
        "simulator.max_episode_steps=25",
        "model=mlp_policy",
        "model.hidden=[1024,1024,1024]",
        "model.value_head=none",
        "algo.group_size=8",
        "train.prompts_per_step=16",
        "train.num_envs=128",
        "train.skip_gradient_free=false",
    ),
}
BOTH, FIRST, SECOND = (0, 1), (0,), (1,)
STAGES = (1, 2, 4)
MEASURING = 80  # steps at most until auto has settled


def all_plans(graph: Graph) -> Iterator[Plan]:
    """Every plan on two devices, but for those that only swap them."""
    last = graph.placed[-1].name
    quantum = max(edge.quantum for edge in graph.edges)
    for before, trained in itertools.product((FIRST, BOTH), (FIRST, SECOND, BOTH)):
        if before == BOTH and trained == SECOND:
            continue
        streams = not set(before) & set(trained) and not graph.cycles
        for chunk in (0, 2 * quantum, 8 * quantum, 16 * quantum) if streams else (0,):
            names = [part.name for part in graph.placed if part.name != last]
            parts = {name: Assignment(before, chunk) for name in names}
            yield Plan({**parts, last: Assignment(trained)})
    for cycle in graph.cycles:
        apart = dict(zip(cycle, (Assignment(FIRST), Assignment(SECOND)), strict=True))
        for stages, trained in itertools.product(STAGES, (FIRST, SECOND, BOTH)):
            yield Plan({**apart, last: Assignment(trained)}, stages)


class Job:
    """One job that can be run by any plan."""

    def __init__(self, name: str, words: tuple[str, ...], folder: Path) -> None:
        self.config: RunConfig = replace(
            compose(Options(overrides=(*SHARED, *words))), output=str(folder / name)
        )
        Path(self.config.output).mkdir()
        self.planning = prepare(self.config)
        self.requests = list(make_source(self.config).train(0).first())
        self.graph: RunGraph = start(self.config, self.planning.first)
        self.seconds: dict[int, list[float]] = defaultdict(list)
        self.bubbles: dict[int, list[float]] = defaultdict(list)

    def auto(self) -> Plan:
        """The plan that the run settles on by itself."""
        steering = Steering(self.config, self.planning, self.graph)
        for step in range(1, MEASURING):
            result, window, spans = self._step()
            plan = steering.after(step, result, window, spans)
            if plan is not None:
                steering.move(step, plan)
            if steering.settled:
                break
        return steering.plan

    def measure(self, number: int, plan: Plan, steps: int) -> None:
        """Some steps by a plan, after one that does not count."""
        self.graph.apply(plan)
        self._step()
        for _ in range(steps):
            _, window, spans = self._step()
            self.seconds[number].append(window[1] - window[0])
            self.bubbles[number].append(step_times(spans, *window, self.graph.devices)["bubble_ratio"])

    def _step(self) -> tuple[Any, tuple[float, float], list[Any]]:
        self.graph.engine.drain_spans()
        began = time.monotonic()
        result = self.graph.flow.step(Requests(lambda *_: self.requests, 0), 0)
        window = (began, time.monotonic())
        return result, window, self.graph.engine.drain_spans()


def compare(name: str, words: tuple[str, ...], rounds: int, steps: int) -> dict[str, float]:
    """All plans of a job beside the one that auto chose."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(name, words, Path(folder))
        try:
            chosen = job.auto()
            plans = list(all_plans(job.planning.graph))
            if not any(same(chosen, plan) for plan in plans):
                plans.append(chosen)
            order = list(range(len(plans)))
            for number in range(rounds):
                random.Random(number).shuffle(order)
                for i in order:
                    job.measure(i, plans[i], steps)
        finally:
            job.graph.stop()
    return report(name, job, plans, chosen)


def report(name: str, job: Job, plans: list[Plan], chosen: Plan) -> dict[str, float]:
    """Rows for people, and the keys of one job."""
    seconds = {i: median(found) for i, found in job.seconds.items()}
    mine = next(i for i, plan in enumerate(plans) if same(plan, chosen))
    for i in sorted(seconds, key=lambda number: seconds[number]):
        say(
            f"{name:9} {seconds[i]:7.3f} s  bubble {median(job.bubbles[i]):4.0%}  {shown(plans[i])}"
            f"{'  <- auto' if i == mine else ''}"
        )
    expected = chosen.prediction.step_s if chosen.prediction is not None else float("nan")
    found = {
        f"{name}.auto_over_best": seconds[mine] / min(seconds.values()),
        f"{name}.auto_s": seconds[mine],
        f"{name}.prediction_error": abs(expected - seconds[mine]) / seconds[mine],
        f"{name}.bubble_ratio": median(job.bubbles[mine]),
    }
    for mode in ("collocated", "disaggregated", "hybrid"):
        found[f"{name}.{mode}_s"] = min(seconds[i] for i, plan in enumerate(plans) if plan.mode == mode)
    if job.planning.graph.cycles:
        found[f"{name}.hybrid_over_disaggregated"] = pipelined(plans, seconds)
    return {key: round(value, 4) for key, value in found.items()}


def pipelined(plans: list[Plan], seconds: dict[int, float]) -> float:
    """Throughput of environments and policy in turns on a device each, with training on both, over rollout
    on one device and then training on the other."""
    sets = [tuple(part.devices for part in plan.assignments.values()) for plan in plans]
    turns = [i for i in seconds if sets[i] == (FIRST, SECOND, BOTH) and plans[i].stages > 1]
    after = [i for i in seconds if sets[i] == (FIRST, FIRST, SECOND)]
    return min(seconds[i] for i in after) / min(seconds[i] for i in turns)


def shown(plan: Plan) -> str:
    """A plan on one line."""
    parts = [
        f"{name} {','.join(map(str, part.devices))}{f' by {part.chunk}' if part.chunk else ''}"
        for name, part in plan.assignments.items()
    ]
    return f"{plan.mode}: {'; '.join(parts)}{f'; {plan.stages} groups' if plan.stages > 1 else ''}"


def main() -> None:
    """Run both jobs and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of each plan in each round")
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    args = parser.parse_args()
    result: dict[str, float] = {}
    for name in args.jobs:
        result |= compare(name, JOBS[name], args.rounds, args.steps)
    finish(result, "rlinf-core", "torch", "transformers", "gymnasium", "mujoco")


if __name__ == "__main__":
    main()
