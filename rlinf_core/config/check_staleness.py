"""Checks of how old the weights may be that made a sample: what algorithm and rollout engine make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import RunConfig


def staleness_problems(config: RunConfig, specs: Mapping[str, Any], needs: AlgorithmNeeds) -> Iterable[str]:
    """One line for each thing that cannot work."""
    most, algo = config.train.max_staleness, config.algo.name
    if config.train.partial_rollouts:
        yield from _parts(config, specs, needs)
    if not most:
        return
    if not needs.off_policy:
        yield (
            f"train.max_staleness: {algo!r} trains only on samples of the present weights, and {most} lets "
            f"them be {most} steps old; set train.max_staleness=0, or choose another algorithm"
            f"{came(config, 'train.max_staleness')}"
        )
    elif config.train.old_logprobs == "recompute" and not needs.recompute_old:
        yield (
            f"train.old_logprobs: recompute leaves nothing in the loss that corrects for the age of samples, "
            f"which train.max_staleness={most} allows; set train.old_logprobs=auto, or let {algo!r} weigh "
            f"samples (algo.decoupled=true){came(config, 'train.old_logprobs')}"
        )


def _parts(config: RunConfig, specs: Mapping[str, Any], needs: AlgorithmNeeds) -> Iterable[str]:
    said = f"{came(config, 'train.partial_rollouts')}"
    if config.train.max_staleness < 2:
        yield (
            "train.partial_rollouts: makes responses by the weights of several steps, for which "
            f"train.max_staleness is 2 or more, not {config.train.max_staleness}; set that, or "
            f"train.partial_rollouts=false{said}"
        )
    if needs.max_rounds or needs.greedy_baseline:
        because = "selects its groups" if needs.max_rounds else "compares with greedy responses"
        yield (
            f"train.partial_rollouts: {config.algo.name!r} {because}, for which the responses of a step are "
            f"made at one time; set train.partial_rollouts=false{said}"
        )
    if config.rollout is not None and not specs["rollout"].provides.continues:
        yield (
            f"train.partial_rollouts: rollout {config.rollout.name!r} cannot go on with responses that were "
            f"begun; set train.partial_rollouts=false, or choose another rollout engine{said}"
        )
