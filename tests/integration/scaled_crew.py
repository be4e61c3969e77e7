"""A run's groups on processes that live on, for tests that change their numbers of ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from trained_weights import REWARD

from rlinf_core.api import HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.flows.flow import StepResult
from rlinf_core.flows.parts import Parts
from rlinf_core.roles.moving import Background
from rlinf_core.run.ahead import RunAhead
from rlinf_core.run.compose import RunGraph, make_flow, make_source
from rlinf_core.run.crew import Crew
from rlinf_core.run.moving import Change, Moved
from rlinf_core.run.seats import Hosts
from rlinf_core.schedule.plan import Assignment, Plan

TEXT = (
    "model=hf_lm",
    "model.preset=char-llama",
    "data=sort_digits",
    "sampling.max_new_tokens=8",
    "trackers=[]",
    "train.samples_per_step=24",
    "train.steps=40",
    "optimizer.lr=0.01",
    "optimizer.eps=1e-3",
    "reward_pool.workers=0",
    "algo=grpo",
    "algo.group_size=4",
)
ROBOT = (
    "simulator={name: gymnasium, id: InvertedPendulum-v5, max_episode_steps: 12, success_return: 12}",
    "model=mlp_policy",
    "algo={name: grpo, group_size: 4}",
    "train={steps: 40, prompts_per_step: 4, num_envs: 8}",
    "optimizer.lr=0.01",
    "optimizer.eps=1e-3",
    "trackers=[]",
)
Counts = Mapping[str, int]


class Machine:
    """Processes for some devices."""

    def __init__(self, folder: Path, devices: int) -> None:
        self.folder = folder
        (folder / "reward.py").write_text(REWARD)
        self.engine = LocalEngine(LocalConfig())
        specs = [HostSpec(f"device{number}") for number in range(devices)]
        *self.devices, reward = self.engine.start([*specs, HostSpec("reward")])
        self.others = {"reward": reward}

    def text(self, *words: str) -> RunConfig:
        """The settings of a text task."""
        reward = f"reward={self.folder / 'reward.py'}:letters"
        config = compose(Options(overrides=(*TEXT, reward, *words)))
        return replace(config, output=str(self.folder))

    def robot(self, *words: str) -> RunConfig:
        """The settings of an embodied task."""
        config = compose(Options(overrides=(*ROBOT, *words)))
        return replace(config, output=str(self.folder))

    def crew(self, config: RunConfig) -> Crew:
        """Without groups yet."""
        return Crew(config, self.engine, Hosts(self.devices, self.others))


class Job:
    """Steps of a run, and changes between them."""

    def __init__(self, crew: Crew, first: Plan) -> None:
        self.crew = crew
        crew.place(first)
        self.graph = RunGraph(crew.engine, crew, first, make_flow(crew))
        config = crew.config
        self.source = make_source(config)
        lag = config.train.max_staleness
        parts = Parts(config.sampling.max_new_tokens, lag) if config.train.partial_rollouts else None
        self.ahead = RunAhead(lag, config.train.steps, self.source.train, parts)
        self.steps: list[StepResult] = []

    def step(self) -> StepResult:
        """The next one."""
        self.steps.append(self.ahead.step(self.graph.flow, len(self.steps)))
        return self.steps[-1]

    def scale(self, wanted: Plan) -> list[Moved]:
        """Other numbers of ranks."""
        return self.carry_out(self.prepared(wanted))

    def scale_beside_a_step(self, wanted: Plan) -> list[Moved]:
        """The same, prepared while a step is made."""
        change = self.crew.change(wanted)
        preparing = Background(change.prepare)
        self.step()
        preparing.wait()
        return self.carry_out(change)

    def prepared(self, wanted: Plan) -> Change:
        """A change that is ready."""
        change = self.crew.change(wanted)
        change.prepare()
        return change

    def carry_out(self, change: Change) -> list[Moved]:
        """Between two steps."""
        self.ahead.settle()
        found = self.graph.go(change)
        change.tidy()
        return found

    def numbers(self, name: str) -> list[float]:
        """A metric of every step."""
        return [result.metrics[name] for result in self.steps]

    def close(self) -> None:
        """The processes are free for others."""
        for group in reversed(list(self.crew.groups.values())):
            group.drop().wait()


def plan(counts: Counts) -> Plan:
    """Every component on the first devices."""
    return Plan({name: Assignment(tuple(range(count))) for name, count in counts.items()})


def trained(crew: Crew, plans: Sequence[Plan]) -> Job:
    """A step by each of these plans."""
    job = Job(crew, plans[0])
    try:
        for before, now in zip([plans[0], *plans], plans, strict=False):
            if now != before:
                job.scale(now)
            job.step()
        return job
    finally:
        job.close()


def state(crew: Crew, folder: Path) -> dict[str, Tensor]:
    """Everything that the actor would keep, whole, put together from what its ranks write."""
    crew.saved(folder)
    found: dict[str, Tensor] = {}
    for file in sorted((folder / "actor").glob("*.safetensors")):
        with safe_open(file, "pt") as handle:
            known = handle.metadata()
            shapes = json.loads(known["rlinf"])["shapes"]
            offsets = json.loads(known["DCP_SHARDING_INFO"])
            for key in handle.keys():  # noqa: SIM118  # it is no mapping
                part, name = handle.get_tensor(key), key.partition("#")[0]
                whole = found.setdefault(name, torch.zeros(shapes[name], dtype=part.dtype))
                begin = offsets[key]["saved_offsets"]
                place = tuple(slice(a, a + size) for a, size in zip(begin, part.shape, strict=True))
                whole[place] = part
    return found
