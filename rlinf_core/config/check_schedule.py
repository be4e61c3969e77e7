"""Checks of the settings that say where and how components run, as far as they need no plugin."""

from __future__ import annotations

from collections.abc import Iterable

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.schema import RunConfig, ScheduleConfig


def schedule_problems(config: RunConfig, needs: AlgorithmNeeds, devices: int) -> Iterable[str]:
    """One line for each thing that cannot work. `devices` is 0 where it is not known."""
    yield from _plan_alone(config)
    yield from _scale(config)
    if devices == 1 and config.mode in ("disaggregated", "hybrid"):
        yield (
            f"mode: {config.mode} needs components on devices of their own, so at least 2 devices, and this "
            f"run has 1; choose mode=collocated, or ranks=2 or more{came(config, 'mode')}"
        )
    samples = config.train.prompts_per_step * needs.group_size
    chunk, group = config.schedule.chunk, needs.group_size if needs.advantage_scope != "sample" else 1
    made = f"{config.train.prompts_per_step} prompts x group size {needs.group_size} = {samples} samples"
    if chunk > samples:
        yield (
            f"schedule.chunk: {chunk} is more than the {made} of a step; choose {samples} or fewer"
            f"{came(config, 'schedule.chunk')}"
        )
    elif chunk % group:
        near = " or ".join(str(size) for size in (chunk // group * group, -(-chunk // group) * group) if size)
        yield (
            f"schedule.chunk: {config.algo.name!r} compares the samples of a group, and {chunk} is no "
            f"multiple of the group size {group}; choose {near}{came(config, 'schedule.chunk')}"
        )
    if config.schedule.stages > (config.train.num_envs or samples):
        yield (
            f"schedule.stages: {config.schedule.stages} groups of {config.train.num_envs or samples} "
            f"environments leave some empty; choose fewer{came(config, 'schedule.stages')}"
        )


def _scale(config: RunConfig) -> Iterable[str]:
    steps = []
    for each in config.schedule.scale:
        told = ", ".join(f"{name}: {count}" for name, count in each.items())
        if "step" not in each or len(each) < 2:
            yield (
                f"schedule.scale: {{{told}}} needs a step and the ranks of a component, such as "
                f"{{step: 20, actor: 2}}{came(config, 'schedule.scale')}"
            )
        elif each["step"] < 1:
            yield f"schedule.scale: {{{told}}}: steps count from 1{came(config, 'schedule.scale')}"
        else:
            steps.append(each["step"])
    for step in sorted({step for step in steps if steps.count(step) > 1}):
        yield f"schedule.scale: step {step} comes twice; name its components together"


def _plan_alone(config: RunConfig) -> Iterable[str]:
    """A plan says everything, so nothing else may."""
    if not config.plan:
        return
    defaults = ScheduleConfig()
    beside = {
        "mode": config.mode != "auto",
        "placement": bool(config.placement),
        "schedule.stages": config.schedule.stages != defaults.stages,
        "schedule.chunk": config.schedule.chunk != defaults.chunk,
    }
    for key in (key for key, set_ in beside.items() if set_):
        yield (
            f"{key}: the plan {config.plan}{came(config, 'plan')} says it already; drop {key}"
            f"{came(config, key)}, or the plan by plan=null"
        )


def schedule_warnings(config: RunConfig, needs: AlgorithmNeeds) -> Iterable[str]:
    """Settings without effect beside others."""
    fixed = "plan" if config.plan else "placement" if config.placement else ""
    defaults = ScheduleConfig()
    for name in ("profile", "profile_steps") if fixed else ():
        if getattr(config.schedule, name) != getattr(defaults, name):
            key = f"schedule.{name}"
            yield f"{key}: has no effect while {fixed} says where everything runs{came(config, key)}"
    lends = config.schedule.dynamic == "in-step"
    apart = "collocated components take turns on the same devices" if config.mode == "collocated" else ""
    if config.schedule.stages > 1 and apart and not config.env_pool.processes:
        yield (
            f"schedule.stages: has no effect: {apart}; with env_pool.processes groups of environments are "
            f"stepped while the policy computes{came(config, 'schedule.stages')}"
        )
    waits = "training needs every sample of a step before it begins" if _waits(config, needs) else ""
    waits = "samples are made ahead of their training" if config.train.max_staleness else waits
    if config.schedule.chunk and (apart or waits) and not lends:
        yield f"schedule.chunk: has no effect: {waits or apart}{came(config, 'schedule.chunk')}"


def _waits(config: RunConfig, needs: AlgorithmNeeds) -> bool:
    if needs.advantage_scope == "batch" or needs.max_rounds:
        return True
    return config.train.mini_batches * config.train.update_epochs > 1


def came(config: RunConfig, key: str) -> str:
    """` (from X)` of the settings at a key and below it; "" if nobody set them."""
    origins = {name: origin for name, origin in config.origins.items() if f"{name}.".startswith(f"{key}.")}
    found = [origin for origin in origins.values() if origin != "default"]
    return f" (from {found[0]})" if found else ""
