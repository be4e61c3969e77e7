"""Checks between settings and what the chosen plugins offer, before any process starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.check_agent import agent_problems
from rlinf_core.config.check_algorithm import algorithm_problems, algorithm_warnings
from rlinf_core.config.check_checkpoint import checkpoint_warnings
from rlinf_core.config.check_env_pool import env_pool_problems, env_pool_warnings
from rlinf_core.config.check_isolation import rollout_process_problems, rollout_process_warnings
from rlinf_core.config.check_policies import policy_problems
from rlinf_core.config.check_schedule import came, schedule_problems, schedule_warnings
from rlinf_core.config.check_staleness import staleness_problems
from rlinf_core.config.check_video import video_problems, video_warnings
from rlinf_core.config.lending import lending_problems
from rlinf_core.config.resolve import SpecSource
from rlinf_core.config.schema import COMPONENT_LISTS, COMPONENTS, SECTIONS, RunConfig, task_of, unused_keys
from rlinf_core.errors import ConfigError

SWITCHES = (("lora", "rank"), ("warm_start", "steps"), ("video", "every"))  # 0 switches the whole section off


def check(config: RunConfig, manager: SpecSource, ranks: int = 0) -> list[str]:
    """Warnings about a run. Raises `ConfigError` with one line for each thing that cannot work.

    `ranks` is how many devices the run will have; 0 takes the number in the config, if it has one.
    """
    specs = {
        section: manager.get(component.kind, component.name)
        for section in COMPONENTS
        if (component := getattr(config, section)) is not None
    }
    needs: AlgorithmNeeds = specs["algo"].needs(config.algo.config)
    problems = [
        *_parts(config, manager),
        *_modalities(config, specs),
        *_capabilities(config, specs, needs),
        *algorithm_problems(config, specs),
        *staleness_problems(config, specs, needs),
        *_demonstrations(config, specs),
        *_sampling(config, specs),
        *agent_problems(config, specs),
        *_batches(config, needs, ranks or config.ranks),
        *schedule_problems(config, needs, ranks or config.ranks),
        *lending_problems(config, specs, needs),
        *env_pool_problems(config, specs, needs),
        *rollout_process_problems(config, specs),
        *video_problems(config, specs),
        *_unused(config),
    ]
    problems += policy_problems(config, needs, manager, problems, check)
    if problems:
        raise ConfigError("\n".join(problems))
    return [
        *_idle(config, needs),
        *algorithm_warnings(config, needs),
        *schedule_warnings(config, needs),
        *env_pool_warnings(config, specs),
        *rollout_process_warnings(config, specs),
        *video_warnings(config),
        *checkpoint_warnings(config),
        *_learning(config, needs),
    ]


def _parts(config: RunConfig, manager: SpecSource) -> Iterable[str]:
    """A text task has data, a reward and a rollout engine."""
    if task_of(config) == "embodied":
        return
    needed = {"data": config.data, "reward": config.rewards, "rollout": config.rollout}
    for section, present in needed.items():
        if not present:
            installed = ", ".join(manager.names({**COMPONENTS, **COMPONENT_LISTS}[section])) or "none"
            yield (
                f"{section}: a text task needs one; choose by --{section} NAME (installed: {installed}), "
                "or name a --simulator for an embodied task"
            )


def _modalities(config: RunConfig, specs: dict[str, Any]) -> Iterable[str]:
    task = task_of(config)
    because = f"simulator {config.simulator.name!r}" if config.simulator else "no simulator is named"
    offered = specs["model"].provides.modality
    if offered != task:
        yield f"model: {config.model.name!r} is for {offered} tasks, this is one of kind {task} ({because})"
    modalities = specs["backend"].provides.modalities
    if task not in modalities:
        has = ", ".join(sorted(modalities)) or "none"
        yield f"backend: {config.backend.name!r} trains tasks of kind {has}, this is one of kind {task}"
    if config.data and task == "text" and specs["data"].modality != task:
        yield f"data: {config.data.name!r} holds {specs['data'].modality} data, this is a {task} task"


def _capabilities(config: RunConfig, specs: dict[str, Any], needs: AlgorithmNeeds) -> Iterable[str]:
    algo = config.algo.name
    if needs.reference and not specs["backend"].provides.reference:
        yield (
            f"algo: {algo!r} with these settings needs log-probabilities of the initial policy; backend "
            f"{config.backend.name!r} cannot compute them"
        )
    if needs.critic != "none":
        section = "critic" if needs.critic == "own" and config.critic is not None else "model"
        if not specs[section].provides.value_head:
            name = getattr(config, section).name
            yield f"algo: {algo!r} needs a critic; {section} {name!r} has no value head"
        if not specs["backend"].provides.values:
            yield f"algo: {algo!r} needs a critic; backend {config.backend.name!r} trains no value heads"
    if config.critic is not None and needs.critic != "own":
        yield (
            f"critic: algorithm {algo!r} with these settings trains no critic of its own; remove it"
            f"{came(config, 'critic.name')}"
        )
    if config.lora.rank:
        without = [
            f"{section} {getattr(config, section).name!r}"
            for section in ("backend", "model", "rollout")
            if section in specs and not specs[section].provides.lora
        ]
        if without:
            yield (
                f"lora.rank: {config.lora.rank} asks for adapters, but {' and '.join(without)} cannot use "
                f"them; set lora.rank=0{came(config, 'lora.rank')}"
            )
        yield from _variant(config, specs)


def _variant(config: RunConfig, specs: dict[str, Any]) -> Iterable[str]:
    for section in ("backend", "rollout"):
        if section in specs and specs[section].provides.lora:
            known = specs[section].provides.lora_variants
            if config.lora.variant not in known:
                name = getattr(config, section).name
                yield (
                    f"lora.variant: {config.lora.variant!r} is not what {section} {name!r} can do; it knows "
                    f"{', '.join(sorted(known))}{came(config, 'lora.variant')}"
                )


def _demonstrations(config: RunConfig, specs: dict[str, Any]) -> Iterable[str]:
    """What imitation takes in an embodied task: a warm start, or an algorithm that does nothing else."""
    warm, algo = config.warm_start, config.algo.name
    imitates = specs["algo"].needs(config.algo.config).imitates
    if task_of(config) == "text" or not (warm.steps or imitates):
        return
    which = f"algorithm {algo!r}" if imitates else f"warm_start.steps={warm.steps}"
    other = "choose another algorithm" if imitates else "set warm_start.steps=0"
    came_from = "" if imitates else came(config, "warm_start.steps")
    if not warm.demonstrations:
        yield (
            f"warm_start.demonstrations: name the folder of recorded episodes that {which} imitates (`rlinf "
            f"demos record` writes one), or {other}{came_from}"
        )
    if not specs["model"].provides.demonstrations:
        yield (
            f"{'algo' if imitates else 'warm_start.steps'}: model {config.model.name!r} does not learn from "
            f"demonstrations; {other}{came_from}"
        )


def _sampling(config: RunConfig, specs: dict[str, Any]) -> Iterable[str]:
    sampling = config.sampling
    if sampling.min_new_tokens > sampling.max_new_tokens:
        yield (
            f"sampling.min_new_tokens: {sampling.min_new_tokens} is more than sampling.max_new_tokens="
            f"{sampling.max_new_tokens}"
        )
    if task_of(config) == "text" and sampling.temperature == 0 and config.train.steps:
        yield (
            "sampling.temperature: 0 draws one and the same response for a prompt, from which nothing is "
            "learned; choose above 0, such as 1.0 (eval.temperature=0 makes only the validation greedy)"
        )
    if task_of(config) == "embodied" and config.eval.temperature not in (None, 0.0):
        yield (
            f"eval.temperature: {config.eval.temperature} has no meaning for actions; choose 0 for the "
            "likeliest action, or null to act as in training"
        )
    if config.rollout is None or "rollout" not in specs:
        return
    provides = specs["rollout"].provides
    asked: tuple[tuple[str, bool, bool, Any], ...] = (
        ("top_p", sampling.top_p != 1.0, provides.top_p, 1.0),
        ("top_k", sampling.top_k != 0, provides.top_k, 0),
        ("stop", bool(sampling.stop), provides.stop_texts, []),
    )
    for name, used, offered, off in asked:
        if used and not offered:
            yield (
                f"sampling.{name}: rollout engine {config.rollout.name!r} does not offer it; set "
                f"sampling.{name}={off}{came(config, f'sampling.{name}')}"
            )


def _batches(config: RunConfig, needs: AlgorithmNeeds, ranks: int) -> Iterable[str]:
    train, group = config.train, needs.group_size
    samples = train.prompts_per_step * group
    made = f"{train.prompts_per_step} prompts x group size {group} = {samples} samples"
    if samples % train.mini_batches:
        yield (
            f"train.mini_batches: {made} cannot be split into {train.mini_batches} equal mini-batches; "
            f"choose {_near(train.mini_batches, samples)}{came(config, 'train.mini_batches')}"
        )
    if samples < ranks:
        prompts = -(-ranks // group)
        yield (
            f"train.prompts_per_step: {made}, fewer than {ranks} ranks; choose train.prompts_per_step="
            f"{prompts} or more, or ranks={samples} or fewer"
        )


def _near(asked: int, samples: int) -> str:
    """The divisors of `samples` on both sides of the number asked for."""
    divisors = [number for number in range(1, samples + 1) if samples % number == 0]
    below = [number for number in divisors if number < asked][-2:]
    above = [number for number in divisors if number > asked][:2]
    return " or ".join(str(number) for number in [*below, *above])


def _unused(config: RunConfig) -> Iterable[str]:
    task = "a text" if task_of(config) == "text" else "an embodied"
    for name in unused_keys(config):
        origins = _set_by_user(config, name)
        present = {"reward": config.rewards}.get(name, getattr(config, name, None))
        if origins or (name in (*COMPONENTS, "reward") and present):
            places = ", ".join(dict.fromkeys(origins.values())) or "default"
            task = {"text": "a text task", "embodied": "an embodied task"}[task_of(config)]
            yield f"{name}: {task} does not use it; remove it (from {places})"


def _set_by_user(config: RunConfig, name: str) -> dict[str, str]:
    """Keys at or below `name` that are no defaults, with their origins."""
    return {
        key: origin
        for key, origin in config.origins.items()
        if origin != "default" and f"{key}.".startswith(f"{name}.")
    }


def _idle(config: RunConfig, needs: AlgorithmNeeds) -> Iterable[str]:
    """Settings below a switch that is off; what is imitated is named by the section of the warm start."""
    for section, switch in SWITCHES:
        settings = getattr(config, section)
        if getattr(settings, switch) or (section == "warm_start" and needs.imitates):
            continue
        for key in _set_by_user(config, section):
            name = key.rpartition(".")[2]
            if getattr(settings, name) != getattr(SECTIONS[section](), name):
                yield f"{key}: has no effect while {section}.{switch} is 0{came(config, key)}"


def _learning(config: RunConfig, needs: AlgorithmNeeds) -> Iterable[str]:
    if needs.advantage_scope == "group" and needs.group_size == 1:
        yield (
            f"algo.group_size: {config.algo.name!r} compares the samples of a group; with a group size of 1 "
            "every advantage is 0 and nothing is learned. Choose 2 or more, such as 8"
        )
    steps = config.train.steps * config.train.mini_batches * config.train.update_epochs
    if steps and config.optimizer.warmup_steps >= steps:
        yield (
            f"optimizer.warmup_steps: {config.optimizer.warmup_steps} is not below the {steps} optimizer "
            "steps of this run, so the learning rate never arrives at optimizer.lr"
        )
