"""Claim: where some responses are much longer than the rest, lending devices within a step makes it shorter
by a fifth or more than the best plan that stays, with the same gradient.

A small language model writes responses of given lengths on two devices. In each step of the job `tail` one
response runs to the limit, ten times as long as the middle one. How many prompts a step has follows from a
measurement on the machine: so many that the device without the long response idles for `TAIL` of the seconds
that training takes of one device. `generation_share` is what generation then takes of a collocated step.

Every plan that two devices allow is run for real (collocated, disaggregated and hybrid, in several chunk
sizes); then the two fastest of them step by step in turns with the collocated one under
`schedule.dynamic=in-step`. `step_over_best_static` is the median step of that over the fastest other,
`gradient_rel_diff` the norm of the difference of both gradients over the norm, `repeats_bit_for_bit` whether
the lent step's gradient is the same again, whoever computed what.

`--jobs lognormal`: the same with lengths that differ without such a response, so that both devices have a
tail and little time is idle. The learning rate is 0 and requests repeat, so all plans do the same work. A
device is one pinned core.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import finish, say
from modes import all_plans, shown
from numpy.typing import NDArray
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM
from safetensors.torch import load_file
from torch import Tensor

from rlinf_core.api import OptimizerConfig
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.flows.flow import Requests
from rlinf_core.run.compose import make_source, start
from rlinf_core.run.planning import prepare
from rlinf_core.run.step_times import step_times
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.plan import Plan
from rlinf_core.types import Request

Lengths = NDArray[np.int64]
USUAL, LIMIT = 128, 1280  # tokens of the middle response and of the longest
GROUP = 8
MEASURED, FEWEST, MOST = 16, 8, 64  # prompts of a step: of the one that is measured, and of the others
TAIL = 0.75
STEPS = 2  # of different lengths
EPSILON = 1e4  # so large that Adam divides by it alone
SCALE = 100.0  # of a gradient, as it is added to weights: far above their rounding
WORDS = (
    "backend=fsdp",
    "backend.sharding=none",
    "algo=grpo",
    f"algo.group_size={GROUP}",
    f"train.micro_batch_tokens={LIMIT}",
    "train.steps=1000",
    "train.skip_gradient_free=false",
    "model=hf_lm",
    "data=sort_digits",
    f"sampling.max_new_tokens={LIMIT}",
    f"sampling.min_new_tokens={LIMIT}",  # so that lengths are those that requests ask for
    "optimizer.lr=0",
    "trackers=[]",
    "ranks=2",
)
REWARD = """
def letters(prompts, responses, answers, metas):
    return [sum(map(str.isdigit, response)) / len(response) for response in responses]
"""


def make_model(folder: Path) -> None:
    """A directory with a small Llama of random weights that has room for the longest response."""
    from transformers import AutoConfig, AutoModelForCausalLM

    HFLM(HFLMConfig(preset="tiny-llama")).export_architecture(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 2 * LIMIT}))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)


def lengths(kind: str, step: int, rows: int) -> Lengths:
    """Of every response of a step."""
    draw = np.random.default_rng(step)
    spread = 0.2 if kind == "tail" else 1.0
    found = np.minimum(USUAL * np.exp(spread * draw.normal(size=rows)), LIMIT)
    if kind == "tail":
        found = np.minimum(found, 2 * USUAL)
        found[draw.integers(rows)] = LIMIT
    wanted: Lengths = np.maximum(found, 2).astype(np.int64)
    return wanted


class Job:
    """A job that can be run by any plan."""

    def __init__(self, kind: str, prompts: int, dynamic: str, folder: Path) -> None:
        words = (
            *WORDS,
            f"model.path={folder / 'model'}",
            f"reward={folder / 'reward.py'}:letters",
            f"train.prompts_per_step={prompts}",
            f"schedule.dynamic={dynamic}",
        )
        self.config: RunConfig = compose(Options(overrides=words))
        self.config = replace(self.config, output=tempfile.mkdtemp(dir=folder))
        self.prompts = prompts
        self.planning = prepare(self.config)
        self.graph = start(self.config, default_plan(self.planning.graph, 2))
        groups = list(make_source(self.config).train(0).first())
        wanted = [lengths(kind, step, prompts * GROUP) for step in range(STEPS)]
        self.requests = [self._asked(groups, each) for each in wanted]
        self.seconds: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(STEPS)])
        self.metrics: dict[str, list[dict[str, float]]] = defaultdict(list)

    @staticmethod
    def _asked(groups: list[list[Request]], wanted: Lengths) -> list[list[Request]]:
        each = iter(wanted.tolist())
        return [[replace(request, until=next(each)) for request in group] for group in groups]

    def go_to(self, plan: Plan) -> None:
        """Run by this plan from now on, after a step that does not count."""
        if plan.assignments != self.graph.plan.assignments:
            self.graph.apply(plan)
        self.step(0)

    def measure(self, name: str) -> None:
        """One step of each kind by the present plan."""
        for number in range(STEPS):
            seconds, metrics = self.step(number)
            self.seconds[name][number].append(seconds)
            self.metrics[name].append(metrics)

    def typical(self, name: str) -> float:
        """Seconds of a step, over the steps of different lengths."""
        return sum(median(found) for found in self.seconds[name]) / STEPS

    def middle(self, name: str, metric: str) -> float:
        """The median of a metric by a plan."""
        return median(found[metric] for found in self.metrics[name])

    def step(self, number: int) -> tuple[float, dict[str, float]]:
        """Its seconds and metrics."""
        self.graph.engine.drain_spans()
        began = time.monotonic()
        self.graph.flow.step(Requests(lambda *_: self.requests[number], self.prompts), 0)
        ended = time.monotonic()
        return ended - began, step_times(self.graph.engine.drain_spans(), began, ended, self.graph.devices)

    def gradient(self, folder: Path) -> dict[str, Tensor]:
        """Of the first step's rows: what one update by an optimizer adds that only multiplies it."""
        actor, crew = self.graph.actor, self.graph.crew
        staged = crew.stage_save(background=False)
        crew.write_save(folder, "listing-")
        crew.finish_save()
        before = self._weights(folder / "before")
        plain = OptimizerConfig(lr=SCALE * EPSILON, eps=EPSILON, grad_clip=0.0)
        actor.call("reset_optimizer", plain, 10).wait()
        self.step(0)
        after = self._weights(folder / "after")
        crew.load(folder, staged["actor"][0].algorithm)
        actor.call("reset_optimizer", self.config.optimizer, 10).wait()
        return {name: (before[name].double() - after[name].double()) / SCALE for name in before}

    def _weights(self, folder: Path) -> dict[str, Tensor]:
        self.graph.actor.call("export", str(folder)).wait()
        return load_file(folder / "model.safetensors")


@contextmanager
def running(kind: str, prompts: int, dynamic: str, folder: Path) -> Iterator[Job]:
    job = Job(kind, prompts, dynamic, folder)
    try:
        yield job
    finally:
        job.graph.stop()


def prompts_of_a_step(folder: Path) -> int:
    """So many that the idle time is what was said of training."""
    with running("tail", MEASURED, "step", folder) as job:
        job.step(0)
        found = [job.step(number)[1] for number in (*range(STEPS), *range(STEPS))]
    idle = 2 * median(step["time/rollout"] - step["time/rollout_mean"] for step in found)
    trained = 2 * median(step["time/actor_mean"] for step in found)
    long = (LIMIT / USUAL - 1) / GROUP  # of one response, in prompts of usual ones
    prompts = idle / TAIL / trained * (MEASURED + long) - long
    say(f"{MEASURED} prompts: a device idles {idle:.2f} s, training takes {trained:.2f} s of one device")
    return min(max(round(prompts), FEWEST), MOST)


def compare(kind: str, prompts: int, rounds: int, folder: Path) -> dict[str, float | bool]:
    """All plans that stay beside the one that lends."""
    with (
        running(kind, prompts, "step", folder) as static,
        running(kind, prompts, "in-step", folder) as lending,
    ):
        plans = {shown(plan): plan for plan in all_plans(static.planning.graph) if uses_both(plan)}
        for name in random.Random(0).sample(list(plans), len(plans)):
            static.go_to(plans[name])
            static.measure(name)
        lending.step(0)
        for name in best_of(static)[:2]:
            static.go_to(plans[name])
            for _ in range(rounds):
                static.measure(name)
                lending.measure("in-step")
        static.graph.apply(default_plan(static.planning.graph, 2))
        one, other, again = (
            job.gradient(folder / f"{kind}-{name}")
            for job, name in ((static, "static"), (lending, "lending"), (lending, "again"))
        )
    norm = sum(float(tensor.square().sum()) for tensor in one.values())
    gap = sum(float((one[name] - other[name]).square().sum()) for name in one)
    return report(kind, static, lending) | {
        "gradient_rel_diff": float(f"{(gap / norm) ** 0.5:.3g}"),
        "repeats_bit_for_bit": all(torch.equal(other[name], again[name]) for name in other),
    }


def uses_both(plan: Plan) -> bool:
    """Whether no device is left out."""
    return len({device for part in plan.assignments.values() for device in part.devices}) == 2


def best_of(job: Job) -> list[str]:
    """Plans, the fastest first."""
    return sorted(job.seconds, key=job.typical)


def report(kind: str, static: Job, lending: Job) -> dict[str, float | bool]:
    """Rows for people, and keys."""
    lent, bubble = lending.typical("in-step"), lending.middle("in-step", "bubble_ratio")
    seconds = lending.middle("in-step", "time/lent")
    say(f"{kind:9} {lent:7.3f} s  bubble {bubble:4.0%}  collocated, in-step: {seconds:.2f} s lent")
    order = best_of(static)
    for name in order:
        bubble = static.middle(name, "bubble_ratio")
        say(f"{kind:9} {static.typical(name):7.3f} s  bubble {bubble:4.0%}  {name}")
    modes = ("collocated", "disaggregated", "hybrid")
    best = {mode: next(name for name in order if name.startswith(mode)) for mode in modes}
    generated = static.middle(best["collocated"], "time/rollout") / static.typical(best["collocated"])
    return {
        "step_over_best_static": round(lent / static.typical(order[0]), 4),
        "in_step_s": round(lent, 4),
        **{f"{mode}_s": round(static.typical(name), 4) for mode, name in best.items()},
        "generation_share": round(generated, 3),
    }


def main() -> None:
    """The jobs, and the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of the fastest plans and the lending one")
    parser.add_argument("--jobs", nargs="*", default=["tail"])
    parser.add_argument("--prompts", type=int, default=0, help="of a step; 0 = as measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        (folder / "reward.py").write_text(REWARD)
        prompts = args.prompts or prompts_of_a_step(folder)
        result: dict[str, float | bool] = {"prompts": prompts}
        for kind in args.jobs:
            prefix = "" if kind == "tail" else f"{kind}."
            found = compare(kind, prompts, args.rounds, folder)
            result |= {f"{prefix}{key}": value for key, value in found.items()}
    finish(result, "rlinf-core", "torch", "transformers")


if __name__ == "__main__":
    main()
