"""The graph of a run's components, from what its task and its algorithm need."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from rlinf_core.roles.setup import algorithm_needs, model_ranks
from rlinf_core.schedule.graph import Component, Edge, Graph

if TYPE_CHECKING:
    from rlinf_core.api.capabilities import AlgorithmNeeds
    from rlinf_core.config.schema import RunConfig

LEARNERS = ("reference", "critic", "actor")  # what takes rows that are scored, and selected


def most_groups(config: RunConfig, needs: AlgorithmNeeds) -> int:
    """Groups that a step asks its rollout for at most."""
    return config.train.prompts_per_step * max(1, needs.max_rounds)


def make_graph(config: RunConfig) -> Graph:
    """Text: rollout -> reward -> [reference] -> [critic] -> actor. Embodied: (environment, rollout) in the
    place of rollout and reward. A barrier stands before the actor where it needs every row first: advantages
    over the whole batch, or several optimizer steps; and before whatever follows where groups are
    selected. With `train.max_staleness` all before the learners works ahead."""
    needs, train = algorithm_needs(config), config.train
    several = train.mini_batches * train.update_epochs > 1
    barrier = needs.advantage_scope == "batch" or several
    samples = train.prompts_per_step * needs.group_size
    text = config.simulator is None
    parts = [] if text else [Component("environment", max_devices=samples)]
    parts.append(Component("rollout", max_devices=samples))
    if text:
        parts.append(Component("reward", on_devices=False))
    if needs.reference:
        parts.append(Component("reference", lockstep=True, with_="actor"))
    if needs.critic == "own":
        parts.append(Component("critic", lockstep=True, with_="actor"))
    ranks = model_ranks(config)
    parts.append(Component("actor", (ranks,), max_devices=samples * ranks, lockstep=True))
    names = [part.name for part in parts]
    pairs = itertools.pairwise(names)
    edges = [
        Edge(
            source,
            target,
            _barrier(target, barrier, needs),
            _quantum(target, needs),
            ahead=train.max_staleness > 0 and target in LEARNERS and source not in LEARNERS,
        )
        for source, target in pairs
    ]
    return Graph(
        tuple(parts),
        tuple(edges),
        samples,
        cycles=() if text else (("environment", "rollout"),),
        syncs=(("actor", "rollout"),),
    )


def _barrier(target: str, all_rows: bool, needs: AlgorithmNeeds) -> bool:
    if target == "actor" and all_rows:
        return True
    return needs.max_rounds > 0 and target in LEARNERS


def _quantum(target: str, needs: AlgorithmNeeds) -> int:
    whole_groups = target in LEARNERS and needs.advantage_scope != "sample"
    return needs.group_size if whole_groups else 1
