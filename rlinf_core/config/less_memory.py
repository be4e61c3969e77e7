"""Settings by which a component takes less memory, as they stand in a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from rlinf_core.config.schema import Component, RunConfig, task_of
from rlinf_core.plugins import plugins

MOST = 3
LEARNERS = ("actor", "critic", "reference")
SMALLEST_BUDGET = 64  # tokens of a micro-batch, below which there is nothing to win
ADAPTERS = 16  # rank


def suggestions(config: RunConfig, component: str) -> list[str]:
    """`train.micro_batch_tokens=4096 (is 8192)` and others, what helps the component most first."""
    if component in LEARNERS:
        found = [*_of_learners(config), *_of_rows(config)]
    elif component == "rollout" and task_of(config) == "text":
        named = config.origins.get("rollout.name") != "default"  # else it is chosen beside the backend
        first = "" if named or config.rollout is None else f"rollout={config.rollout.name} "
        own = (f"{first}{setting}" for setting in _own(config.rollout, "rollout"))
        found = [*own, *_of_rows(config), *_own(config.model, "model")]
    elif component in ("environment", "rollout", "policy"):
        found = [*_of_rows(config), *_own(config.model, "model")]
    else:
        found = [*_halved("reward_pool.workers", config.reward_pool.workers, 1), *_of_rows(config)]
    found += [*_halved("eval.samples", config.eval.samples, 1), *_of_saving(config)]
    return found[:MOST]


def _of_learners(config: RunConfig) -> Iterator[str]:
    yield from _halved("train.micro_batch_tokens", config.train.micro_batch_tokens, SMALLEST_BUDGET)
    yield from _own(config.backend, "backend")
    if not config.lora.rank and all(_adapts(each) for each in (config.backend, config.model)):
        yield f"lora.rank={ADAPTERS} (is 0)"
    yield from _of_saving(config)


def _of_rows(config: RunConfig) -> Iterator[str]:
    train = config.train
    if task_of(config) == "text":
        yield from _halved("sampling.max_new_tokens", config.sampling.max_new_tokens, 1)
    else:
        yield from _halved("train.num_envs", train.num_envs or 64, 1)
        yield from _halved("env_pool.processes", config.env_pool.processes, 1)
    if train.samples_per_step:
        yield from _halved("train.samples_per_step", train.samples_per_step, 1)
    else:
        yield from _halved("train.prompts_per_step", train.prompts_per_step, 1)


def _of_saving(config: RunConfig) -> Iterator[str]:
    if config.checkpoint.background:
        yield "checkpoint.background=false (is true)"


def _halved(key: str, value: int, least: int) -> Iterator[str]:
    if value // 2 >= least:
        yield f"{key}={value // 2} (is {value})"


def _own(component: Component | None, section: str) -> Iterator[str]:
    """Fields of a plugin whose metadata say which value takes less: `{"less_memory": value}`, or "half"."""
    if component is None:
        return
    for field in fields(component.config):
        less, now = field.metadata.get("less_memory"), getattr(component.config, field.name)
        if less == "half" and now > 1:
            yield f"{section}.{field.name}={now // 2} (is {now})"
        elif less is not None and less not in ("half", now):
            yield f"{section}.{field.name}={_text(less)} (is {_text(now)})"


def _adapts(component: Component) -> bool:
    return bool(plugins().get(component.kind, component.name).provides.lora)


def _text(value: Any) -> str:  # Any: the value of a setting
    return str(value).lower() if isinstance(value, bool) else str(value)
