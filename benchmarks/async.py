"""Claim: with rows made ahead of their training (`train.max_staleness`), a core that plays and a core that
trains make more steps a second, and learn the same.

A language model learns to sort digits (the quickstart) and an arm to reach (the recipe `fetch-reach-ppo`
with a larger policy and the decoupled loss), with a lag of 0 (in step), 1 and 2. All three train from the
same start to the end, taking turns every few steps. `throughput_over_sync_kN` is their steps a second over
those in step, `accuracy_*` the held-out accuracy at the end; of the arm, under `embodied.`, `success_*`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from common import finish, say

from rlinf_core.api import OptimizerConfig
from rlinf_core.comm.stream import Stream
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.run.ahead import RunAhead
from rlinf_core.run.compose import make_source, start
from rlinf_core.run.evaluate import eval_metrics
from rlinf_core.run.planning import prepare

LAGS = (0, 1, 2)
NAMES = {0: "sync", 1: "k1", 2: "k2"}
SHARED = ("trackers=[]", "ranks=2", "mode=disaggregated")
CALL = 50  # supervised steps a call


@dataclass(frozen=True)
class Task:
    """What is trained, by which metric, and how many steps until it is another one's turn."""

    recipe: str
    metric: str
    turn: int
    prefix: str = ""  # of its keys
    words: tuple[str, ...] = ()


TASKS = {
    "text": Task("quickstart", "accuracy", turn=15),
    "embodied": Task(
        "fetch-reach-ppo",
        "success",
        turn=5,
        prefix="embodied.",
        words=(
            "model.hidden=[512,512]",  # so that training takes about as long as the simulator
            "optimizer.lr=1.5e-4",  # a higher one does not bear rows that are 128 optimizer steps old
            "train.steps=40",
            "algo.decoupled=true",
            "algo.importance_cap=2",
            "placement={environment: 0, rollout: 0, actor: 1}",
        ),
    ),
}


class Job:
    """One training that goes on whenever it is its turn."""

    def __init__(self, task: Task, lag: int, folder: Path) -> None:
        given = (*SHARED, *task.words, f"train.max_staleness={lag}")
        self.config: RunConfig = replace(
            compose(Options(recipe=task.recipe, overrides=given)), output=str(folder / f"lag-{lag}")
        )
        Path(self.config.output).mkdir()
        self.source = make_source(self.config)
        self.graph = start(self.config, prepare(self.config).first)
        self.ahead = RunAhead(lag, self.config.train.steps, self.source.train)
        self.step = 0
        self.rates: list[float] = []

    def warm_start(self, folder: Path) -> Mapping[str, Any]:
        """Supervised training, kept in a folder; returns the algorithm's state."""
        warm, actor = self.config.warm_start, self.graph.actor
        optimizer = OptimizerConfig(lr=warm.lr, betas=self.config.optimizer.betas, schedule=warm.schedule)
        actor.call("reset_optimizer", optimizer, warm.steps).wait()
        for done in range(0, warm.steps, CALL):
            self.source.imitate(actor, done, min(CALL, warm.steps - done)).wait()
        actor.call("start_rl").wait()
        staged = self.graph.crew.stage_save(background=False)
        self.graph.crew.write_save(folder, "listing-")
        self.graph.crew.finish_save()
        return staged["actor"][0].algorithm

    def go_on(self, steps: int) -> None:
        """Some more steps."""
        count = min(steps, self.config.train.steps - self.step)
        began = time.perf_counter()
        for _ in range(count):
            result = self.ahead.step(self.graph.flow, self.step)
            assert result.metrics.get("train/staleness_max", 0.0) <= self.ahead.lag
            self.step += 1
        self.ahead.settle()
        self.rates.append(count / (time.perf_counter() - began))

    def score(self, name: str) -> float:
        """Held out."""
        rows = self.graph.flow.evaluate(Stream.of(self.source.eval()))
        primary = self.config.rewards[0].component.name if self.config.rewards else ""
        return eval_metrics(rows, primary)[f"eval/{name}"]


def compare(name: str, steps: int) -> dict[str, float]:
    """One task with every lag; the first turn of each, in which processes warm up, does not count."""
    task = TASKS[name]
    task = replace(task, words=(*task.words, f"train.steps={steps}")) if steps else task
    metric = task.metric
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(task, lag, Path(folder)) for lag in LAGS]
        try:
            if jobs[0].config.warm_start.steps:
                state = jobs[0].warm_start(Path(folder))
                for job in jobs[1:]:
                    job.graph.crew.load(Path(folder), state)
            before = jobs[0].score(metric)
            order = list(jobs)
            while jobs[0].step < jobs[0].config.train.steps:
                for job in order:
                    job.go_on(task.turn)
                order.reverse()
            found = {NAMES[job.ahead.lag]: job.score(metric) for job in jobs}
        finally:
            for job in jobs:
                job.graph.stop()
    rates = {NAMES[job.ahead.lag]: median(job.rates[1:] or job.rates) for job in jobs}
    for lag, rate in rates.items():
        say(f"{name:9} {lag:5} {rate:6.2f} steps/s  {metric} {before:.3f} -> {found[lag]:.3f}")
    result = {f"throughput_over_sync_{lag}": rates[lag] / rates["sync"] for lag in ("k1", "k2")}
    result |= {f"{metric}_{lag}": found[lag] for lag in found} | {f"{metric}_before": before}
    return {f"{task.prefix}{key}": round(value, 4) for key, value in result.items()}


def main() -> None:
    """Run both tasks and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--steps", type=int, default=0, help="of each; 0 = as the recipes say")
    args = parser.parse_args()
    result: dict[str, float] = {}
    for name in args.tasks:
        result |= compare(name, args.steps)
    finish(result, "rlinf-core", "torch", "transformers", "gymnasium", "mujoco")


if __name__ == "__main__":
    main()
