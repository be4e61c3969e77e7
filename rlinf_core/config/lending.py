"""Devices that generation has no more work for, lent to what follows while others still generate.

What can be lent, to whom, and in which pieces; and why a run cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import ConfigError

Lent = Literal["nothing", "reference", "training"]  # to "training" = with its reference
UNITS = 64  # pieces of a step, about, where `schedule.chunk` does not say: enough for ranks to end together
KEY = "schedule.dynamic"


def lent_to(config: RunConfig, needs: AlgorithmNeeds) -> Lent:
    """What devices of a run are lent to: training where each group's gradient can be computed without the
    others, else the reference's log-probabilities."""
    if config.schedule.dynamic != "in-step" or _never(config, needs):
        return "nothing"
    if not _waits(config, needs):
        return "training"
    return "reference" if needs.reference else "nothing"


def unit_groups(config: RunConfig, needs: AlgorithmNeeds) -> int:
    """Groups that are taken at once."""
    samples = config.schedule.chunk or config.train.prompts_per_step * needs.group_size // UNITS
    return max(1, -(-samples // needs.group_size))


def piece_tokens(config: RunConfig, needs: AlgorithmNeeds) -> int:
    """Tokens from which on a unit is trained in pieces; 0 = never, as something else is computed of its rows
    first."""
    if needs.reference or needs.critic == "head" or config.train.old_logprobs == "recompute":
        return 0
    return config.train.micro_batch_tokens


def lending_problems(config: RunConfig, specs: Mapping[str, Any], needs: AlgorithmNeeds) -> Iterable[str]:
    """One line for what leaves nothing to lend."""
    if config.schedule.dynamic != "in-step":
        return
    algo = config.algo.name
    reason = _never(config, needs)
    if not reason and not needs.reference:
        reason = _waits(config, needs)
    if not reason and not specs["backend"].provides.any_order:
        reason = _meets(config.backend.name)
    if reason:
        yield f"{KEY}: in-step {reason.format(algo=algo)}; set {KEY}=step{came(config, KEY)}"


def refuse_ordered(config: RunConfig, any_order: Sequence[bool]) -> None:
    """Raises `ConfigError` where the trainers that were built do not take parts of a step in any order."""
    if not all(any_order):
        raise ConfigError(
            f"{KEY}: in-step {_meets(config.backend.name)} with these settings; set {KEY}=step, or let every "
            "rank hold the whole model, if the backend can and it fits"
        )


def _meets(backend: str) -> str:
    return (
        "lets a rank train while another one still generates, and the ranks of backend "
        f"{backend!r} wait for each other in every micro-batch"
    )


def _never(config: RunConfig, needs: AlgorithmNeeds) -> str:
    """Why nothing that follows can begin early; "" = something can."""
    if needs.max_rounds:
        return "has nothing to lend devices to: algorithm {algo!r} selects groups before any is trained"
    if config.train.max_staleness:
        return (
            "has nothing to lend devices to: with train.max_staleness rows are made while earlier ones are "
            "trained"
        )
    return ""


def _waits(config: RunConfig, needs: AlgorithmNeeds) -> str:
    """Why training itself needs every row of a step; "" = it does not."""
    if needs.advantage_scope == "batch":
        return "has nothing to lend devices to: algorithm {algo!r} compares all samples of a step"
    if config.train.mini_batches * config.train.update_epochs > 1:
        return "has nothing to lend devices to: several optimizer steps need all samples of a step"
    if needs.critic == "own":
        return "has nothing to lend devices to: the critic of {algo!r} is trained on all samples first"
    return ""
