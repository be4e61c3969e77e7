"""Evaluates a policy outside of its run: that of a checkpoint, or a model as it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.api import Dataset
from rlinf_core.comm.stream import Stream
from rlinf_core.config.schema import (
    CheckpointConfig,
    Component,
    RunConfig,
    ScheduleConfig,
    VideoConfig,
)
from rlinf_core.errors import CheckpointError, ConfigError, DataError
from rlinf_core.evaluation.results import Result, asked_on
from rlinf_core.policies import of_all
from rlinf_core.roles.setup import build, build_dataset, build_model, build_turns
from rlinf_core.run.compose import start
from rlinf_core.run.evaluate import Asked, Rows, Wanted, score_name, summary
from rlinf_core.run.graph import make_graph
from rlinf_core.run.machines import find_machines
from rlinf_core.run.prompts import PromptSource, requests
from rlinf_core.run.resuming import FOREIGN, lacks, refuse_other_backend
from rlinf_core.run.source import episodes, known_by
from rlinf_core.schedule.defaults import default_plan

if TYPE_CHECKING:
    from rlinf_core.api import Engine
    from rlinf_core.run.checkpoint import Checkpoint
    from rlinf_core.run.compose import RunGraph
    from rlinf_core.types import Experience, Row


def without_training(config: RunConfig) -> RunConfig:
    """The settings of a run as far as its policy depends on them: nothing is trained, moved or written."""
    train = replace(
        config.train, steps=0, mini_batches=1, update_epochs=1, max_staleness=0, partial_rollouts=False
    )
    return replace(
        config,
        train=train,
        trackers=(),
        output="",
        mode="auto",
        placement={},
        plan="",
        schedule=ScheduleConfig(),
        warm_start=replace(config.warm_start, steps=0),
        video=VideoConfig(),
        checkpoint=CheckpointConfig(),
    )


def refuse_idle(config: RunConfig, wanted: Wanted) -> None:
    """Raises `ConfigError` for what asks for nothing, or for the same again and again."""
    most = max(wanted.ks, default=0)
    if most > wanted.responses:
        raise ConfigError(
            f"--k {most} is about {most} responses to a problem, --responses {wanted.responses} asks for "
            f"fewer; ask for {most} or more"
        )
    temperature = config.eval.temperature
    if temperature is None and config.simulator is None:
        temperature = config.sampling.temperature
    if wanted.responses > 1 and temperature == 0:
        raise ConfigError(
            f"--responses {wanted.responses}: without chance in it a policy responds the same each time; "
            "leave --responses out, or set a temperature (no --greedy; eval.temperature=null)"
        )
    if config.simulator is not None and wanted.split != "eval":
        raise ConfigError(f"--split {wanted.split}: an embodied task has no rows of data; leave it out")
    if config.simulator is not None and not config.eval.samples:
        raise ConfigError("--samples 0 means all rows, which a simulator does not have; name a number")


def ask(config: RunConfig, wanted: Wanted) -> Asked:
    """The requests, as a run with these settings makes them at its evaluations; further responses to a
    problem have seeds of their own. Raises `DataError`, `ModelError` or `ConfigError`."""
    seed, count = config.seed, config.eval.samples
    if config.simulator is not None:
        chunks = list(episodes(seed, range(count), wanted.responses, 0, "eval"))
        return Asked(chunks, asked_on(config, wanted.split, ""))
    dataset = _rows(cast("Component", config.data), wanted.split, seed)
    processor = build_model(config).processor()
    source = PromptSource(
        dataset,
        processor,
        seed,
        config.sampling.max_new_tokens,
        config.train.max_prompt_tokens,
        build_turns(config, processor),
    )
    if source.room < 1:
        source.check()
    prompts = source.first(count or len(dataset))
    made = list(requests(prompts, wanted.responses, 0, seed, "eval"))
    return Asked(made, asked_on(config, wanted.split, known_by(dataset)))


def refuse_foreign_data(config: RunConfig, checkpoint: Checkpoint, asked: Asked) -> None:
    """Raises `CheckpointError` where the held-out rows are not those that the run has evaluated on."""
    try:
        then = checkpoint.state["source"].get("data", {}).get("eval")
    except FOREIGN as err:
        raise lacks(checkpoint, err) from err
    now = asked.on.get("rows")
    if then is not None and now is not None and then != now:
        name = config.data.name if config.data else ""
        raise CheckpointError(
            f"data: the held-out rows of {name!r} are not those of the run: {then} -> {now}; restore them, "
            "or name the data to evaluate on by --data"
        )


def evaluate(
    config: RunConfig, checkpoint: Checkpoint | None, asked: Asked, wanted: Wanted
) -> tuple[Result, list[Experience]]:
    """Every response scored, and what follows from them. Processes have ended when this returns or raises.

    Raises `DataError` if none could be scored.
    """
    with restored(config, checkpoint) as graph:
        began = time.perf_counter()
        rows = graph.flow.evaluate(Stream.of(map(list, asked.chunks)))
        seconds = time.perf_counter() - began
    result = summary(config, asked, rows, wanted)
    if score_name(config) not in result.metrics:
        first = next((row.error for row in rows if row.error), "no response came back")
        raise DataError(f"none of {len(rows)} responses could be scored; the first: {first}")
    tokens = sum(row.length for row in of_all(rows))
    result.metrics |= {"time_s": seconds, "decisions_per_s": tokens / max(seconds, 1e-9)}
    return result, rows


@contextmanager
def restored(config: RunConfig, checkpoint: Checkpoint | None) -> Iterator[RunGraph]:
    """The groups that evaluate a policy: that of the checkpoint, or the model as it is. Processes have ended
    when the block has."""
    engine: Engine = build(config.engine)
    plan = default_plan(make_graph(config), find_machines(config, engine).alike)
    graph = start(config, plan, engine, learns=False)
    try:
        if checkpoint is not None:
            _restore(config, checkpoint, graph.actor)
        yield graph
    finally:
        graph.stop()


def _restore(config: RunConfig, checkpoint: Checkpoint, actor: Any) -> None:
    try:
        refuse_other_backend(checkpoint, config)
        algorithm = dict(checkpoint.state["algorithm"])
    except FOREIGN as err:
        raise lacks(checkpoint, err) from err
    actor.call("load", str(checkpoint.path / "actor"), algorithm).wait()


def _rows(component: Component, split: Rows, seed: int) -> Dataset:
    if split != "all":
        return build_dataset(component, split, seed)
    return _Both(build_dataset(component, "train", seed), build_dataset(component, "eval", seed))


class _Both(Dataset):
    """The rows to train on, followed by those held out."""

    def __init__(self, train: Dataset, held_out: Dataset) -> None:
        super().__init__(train.config, "eval", train.seed)
        self._parts = (train, held_out)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __getitem__(self, index: int) -> Row:
        train, held_out = self._parts
        return train[index] if index < len(train) else held_out[index - len(train)]

    def fingerprint(self) -> str:
        return "+".join(part.fingerprint() for part in self._parts)
