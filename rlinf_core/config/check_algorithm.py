"""Checks of what an algorithm asks for against what the task and the other settings give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import INHERITS, RunConfig, task_of
from rlinf_core.errors import ConfigError


def algorithm_problems(config: RunConfig, specs: Mapping[str, Any]) -> Iterable[str]:
    """One line for each thing that cannot work."""
    algo, spec = config.algo.name, specs["algo"]
    needs: AlgorithmNeeds = spec.needs(config.algo.config)
    if task_of(config) == "embodied" and needs.greedy_baseline:
        because = _because(config, spec, lambda found: found.greedy_baseline)
        yield (
            f"algo: {algo!r}{because} compares with the greedy response to each prompt, which only text "
            "tasks have; choose other options or another algorithm"
        )
    if task_of(config) == "embodied" and needs.length_limit:
        because = _because(config, spec, lambda found: found.length_limit)
        yield (
            f"algo: {algo!r}{because} uses the length that responses may have, which only text tasks have; "
            f"choose other options (rlinf plugins show {algo})"
        )
    if needs.recompute_old and config.train.old_logprobs == "rollout":
        because = _because(config, spec, lambda found: found.recompute_old)
        yield (
            f"train.old_logprobs: {algo!r}{because} needs the trainer's own log-probabilities, not the "
            f"rollout's; set train.old_logprobs=auto{came(config, 'train.old_logprobs')}"
        )
    if needs.imitates and config.train.max_staleness:
        yield (
            f"train.max_staleness: {algo!r} imitates what the data shows, so that no row is ever stale; "
            f"leave it at 0{came(config, 'train.max_staleness')}"
        )
    yield from _level(config, specs, needs)


def _level(config: RunConfig, specs: Mapping[str, Any], needs: AlgorithmNeeds) -> Iterable[str]:
    level, algo = needs.logprob_level, config.algo.name
    if task_of(config) == "text":
        if level != "chunk":
            yield (
                f"algo: {algo!r} asks for log-probabilities of each {level}, which is for embodied tasks: in "
                "text each decision is one token; leave it at chunk"
            )
        return
    offered = specs["model"].provides.logprob_levels
    if level not in offered:
        yield (
            f"algo: {algo!r} asks for log-probabilities of each {level}; model {config.model.name!r} gives "
            f"them for each: {', '.join(sorted(offered)) or 'nothing'}"
        )


def algorithm_warnings(config: RunConfig, needs: AlgorithmNeeds) -> Iterable[str]:
    """Settings without effect beside the algorithm."""
    if needs.critic == "own":
        return
    for section, source in INHERITS.items():
        own, given = getattr(config, section), getattr(config, source)
        for item in fields(own):
            if getattr(own, item.name) != getattr(given, item.name):
                key = f"{section}.{item.name}"
                yield (
                    f"{key}: has no effect: algorithm {config.algo.name!r} with these settings trains no "
                    f"critic of its own{came(config, key)}"
                )


def _because(config: RunConfig, spec: Any, needed: Callable[[AlgorithmNeeds], bool]) -> str:
    """` with algo.X=V`: the options without which the algorithm would not need it."""
    found = []
    settings = config.algo.config
    for item in fields(settings):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        value = getattr(settings, item.name)
        if item.init and default is not MISSING and value != default:
            try:
                without = spec.needs(replace(settings, **{item.name: default}))
            except ConfigError:  # an option that another one asks for
                continue
            if not needed(without):
                found.append(f"algo.{item.name}={value}")
    return f" with {' and '.join(found)}" if found else ""
