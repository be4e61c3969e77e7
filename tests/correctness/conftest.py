"""Tiny runs in this process, one step at a time, and rows that are made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from rlinf_core.comm.stream import Stream
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.flows.flow import StepResult
from rlinf_core.plugins import plugins
from rlinf_core.roles.setup import build_algorithm
from rlinf_core.roles.update import Updater
from rlinf_core.run.compose import RunGraph, make_source, start
from rlinf_core.run.graph import make_graph
from rlinf_core.run.source import Source
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.plan import Mode
from rlinf_core.types import Prompt, Sample

REWARD = """
def letters(prompts, responses, answers, metas):
    return [sum(map(str.isdigit, response)) / 8 for response in responses]

def one(prompts, responses, answers, metas):
    return [1.0 for _ in responses]

def some(prompts, responses, answers, metas):
    # right or wrong by the response for prompts that begin with a low digit, always right for others
    return [float(p[0] > "4" or sum(map(ord, r)) % 2) for p, r in zip(prompts, responses)]
"""
TEXT = (
    "model=hf_lm",
    "model.preset=char-llama",
    "data=sort_digits",
    "sampling.max_new_tokens=8",
    "trackers=[]",
    "warm_start.steps=0",
    "train.prompts_per_step=4",
    "train.steps=9",
    "optimizer.lr=1e-3",
    "engine=inline",
    "ranks=1",
    "reward_pool.workers=0",
)


EMBODIED = (
    "simulator=gymnasium",
    "simulator.id=InvertedPendulum-v5",
    "simulator.max_episode_steps=5",
    "model=mlp_policy",
    "model.chunk=2",
    "trackers=[]",
    "train.prompts_per_step=4",
    "train.num_envs=3",
    "train.steps=9",
    "engine=inline",
    "ranks=1",
)


@dataclass
class Run:
    """A run whose steps a test makes."""

    config: RunConfig
    graph: RunGraph
    source: Source

    def step(self, step: int) -> StepResult:
        """Step number `step`, from 0."""
        return self.graph.flow.step(self.source.train(step), step)

    def worker(self, name: str) -> Any:  # Any: a worker of some role
        """The only rank of a group."""
        host, member = self.graph.crew.groups[name].members[0]
        return host.table._workers[member]  # type: ignore[attr-defined]

    def weights(self, *, trainable_only: bool = False) -> dict[str, Tensor]:
        """What the actor would send to a rollout in another process, copied."""
        sent = self.graph.actor.stage(
            "publish", Stream.of([]), local={}, remote=True, trainable_only=trainable_only
        )
        return {name: t.detach().clone() for bucket in sent.collect() for name, t in bucket.tensors.items()}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., RunConfig]:
    """Makes the settings of a tiny text run."""
    (tmp_path / "reward.py").write_text(REWARD)

    def make(*words: str, reward: str = "letters") -> RunConfig:
        named = f"reward={tmp_path / 'reward.py'}:{reward}"
        return replace(compose(Options(overrides=(*TEXT, named, *words))), output=str(tmp_path / "run"))

    return make


@pytest.fixture
def tiny_run(settings: Callable[..., RunConfig]) -> Iterator[Callable[..., Run]]:
    """Starts tiny text runs, and ends them."""
    with ExitStack() as ends:

        def begin(*words: str, devices: int = 1, mode: Mode = "collocated", **options: str) -> Run:
            config = settings(*words, **options)
            graph = start(config, default_plan(make_graph(config), devices, mode))
            ends.callback(graph.stop)
            return Run(config, graph, make_source(config))

        yield begin


@pytest.fixture
def embodied_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts tiny runs in a simulator, and ends them."""
    with ExitStack() as ends:

        def begin(*words: str) -> Run:
            config = replace(compose(Options(overrides=(*EMBODIED, *words))), output=str(tmp_path / "run"))
            graph = start(config, default_plan(make_graph(config), 1, "collocated"))
            ends.callback(graph.stop)
            return Run(config, graph, make_source(config))

        yield begin


@pytest.fixture
def updater(settings: Callable[..., RunConfig]) -> Callable[..., Updater]:
    """Makes the training part of a tiny run, with a trainer of this process."""

    def make(*words: str, rank: int = 0, ranks: int = 1) -> Updater:
        config = settings(*words)
        algorithm = build_algorithm(config)
        spec = plugins().get("models", config.model.name)
        model = spec.load()(config.model.config)
        if algorithm.needs.critic == "head":
            model.add_value_head()
        backend = plugins().get(config.backend.kind, config.backend.name)
        trainer = backend.load()(config.backend.config).build(
            model,
            config.optimizer,
            config.lora,
            _context(),
            sampling=config.sampling,
            keep_reference=algorithm.needs.reference,
        )
        return Updater(trainer, algorithm, model, config, rank, ranks)

    return make


def _context() -> Any:
    from rlinf_core.api import TrainerContext

    return TrainerContext(seed=3, total_steps=10)


@pytest.fixture(scope="session")
def text_row() -> Callable[..., Sample]:
    """Makes a row of given tokens; `mask` says which of them the policy wrote."""

    def make(
        prompt: Sequence[int], response: Sequence[int], mask: Sequence[int] | None = None, **fields: Any
    ) -> Sample:
        trained = [1] * len(response) if mask is None else mask
        values: dict[str, Any] = {
            "group": 0,
            "replica": 0,
            "seed": 0,
            "mask": np.array(trained, dtype=bool),
            "logprobs": np.zeros(len(response), dtype=np.float32),
            "weight_version": 0,
            "reward": 0.0,
            "prompt": Prompt(0, np.array(prompt), ""),
            "response_ids": np.array(response),
        }
        return Sample(**{**values, **fields})

    return make
