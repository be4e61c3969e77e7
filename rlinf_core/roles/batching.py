"""How the rows of one step are shared between ranks and cut into micro-batches; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlinf_core.errors import ConfigError
from rlinf_core.roles.partition import partition
from rlinf_core.types import Experience, Sample, Trajectory

Weights = Mapping[int, int] | Sequence[int] | Mapping[int, float] | Sequence[float]
UNEVEN = 1.05  # largest part over the mean, up to where groups are not taken apart for balance


def row_tokens(row: Experience) -> int:
    """Positions that a forward pass over this row computes."""
    if isinstance(row, Trajectory):
        return len(row.actions)
    prompt = len(row.prompt.token_ids) if isinstance(row, Sample) else 0
    return prompt + len(row.mask)


def mini_batches(rows: int, parts: int, seed: int) -> list[list[int]]:
    """Row numbers of each optimizer step of one epoch, shuffled when there are several."""
    if parts == 1:
        return [list(range(rows))]
    order = np.random.default_rng(seed).permutation(rows)
    return [sorted(part.tolist()) for part in np.array_split(order, parts)]


def padded_micro_batches(
    positions: Sequence[int], tokens: Weights, budget: int, most: int = 0
) -> list[list[int]]:
    """Cut positions into runs of similar length whose padded size stays within `budget` tokens, of at most
    `most` rows (0 = any number).

    A single row larger than the budget is one micro-batch of its own.
    """
    ordered = sorted(positions, key=lambda i: (-tokens[i], i))
    batches: list[list[int]] = []
    for position in ordered:
        count = len(batches[-1]) + 1 if batches else 0
        if batches and tokens[batches[-1][0]] * count <= budget and not 0 < most < count:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def rank_micro_batches(
    positions: Sequence[int],
    tokens: Weights,
    ranks: int,
    budget: int,
    most: int = 0,
    *,
    costs: Weights | None = None,
    groups: Weights | None = None,
) -> list[list[list[int]]]:
    """Micro-batches of every rank, ranks of near equal cost (tokens, unless `costs` says better); ranks with
    fewer get empty ones, so that all have equally many.

    Rows are padded to the longest of a micro-batch, unless `groups` tells which rows may share a prompt: then
    a micro-batch holds `budget` real tokens and all are of near equal cost, so that ranks that meet in each
    of them wait little. Groups stay together where that keeps the balance.
    """
    if budget < 1:
        raise ConfigError(f"train.micro_batch_tokens: {budget} is less than 1")
    costs = tokens if costs is None else costs
    shares = balanced_parts(positions, costs, ranks, groups)
    if groups is None:
        cut = [padded_micro_batches(share, tokens, budget, most) for share in shares]
    else:
        cut = _within(shares, tokens, budget, most, costs, groups)
    count = max(1, max(len(batches) for batches in cut))
    return [batches + [[] for _ in range(count - len(batches))] for batches in cut]


def balanced_parts(
    positions: Sequence[int], costs: Weights, parts: int, groups: Weights | None = None
) -> list[list[int]]:
    """Deal positions to parts of near equal cost; groups whole if that is possible within `UNEVEN`."""
    if groups is not None and positions:
        units: dict[float, list[int]] = {}
        for position in positions:
            units.setdefault(groups[position], []).append(position)
        members = list(units.values())
        sums = [float(sum(costs[i] for i in unit)) for unit in members]
        dealt = partition(sums, parts)
        if max(sum(sums[u] for u in part) for part in dealt) <= UNEVEN * sum(sums) / parts:
            return [sorted(i for u in part for i in members[u]) for part in dealt]
    dealt = partition([costs[i] for i in positions], parts)
    return [[positions[i] for i in part] for part in dealt]


def _within(
    shares: Sequence[Sequence[int]], tokens: Weights, budget: int, most: int, costs: Weights, groups: Weights
) -> list[list[list[int]]]:
    """Few micro-batches, as many on each rank, that hold no more than the budget, or one row."""
    longest = max(len(share) for share in shares)
    count = min(longest, max(_least(share, tokens, budget, most) for share in shares))
    while True:
        cut = [_parts(share, count, costs, groups, most) for share in shares]
        if count >= longest or all(_fits(batch, tokens, budget) for batches in cut for batch in batches):
            return cut
        count = min(longest, count + 1 + count // 16)


def _least(share: Sequence[int], tokens: Weights, budget: int, most: int) -> int:
    """Micro-batches that cannot be done without: two rows of more than half the budget never fit together."""
    large = sum(2 * tokens[i] > budget for i in share)
    rows = -(-len(share) // most) if most else 0
    return max(large, rows, -(-int(sum(min(tokens[i], budget) for i in share)) // budget))


def _parts(share: Sequence[int], count: int, costs: Weights, groups: Weights, most: int) -> list[list[int]]:
    """Of near equal cost; where a number of rows is not to be passed, of near equal numbers too."""
    if not most:
        return [part for part in balanced_parts(share, costs, count, groups) if part]
    dealt = partition([costs[i] for i in share], count, equal_counts=True)
    return [[share[i] for i in part] for part in dealt if part]


def _fits(batch: Sequence[int], tokens: Weights, budget: int) -> bool:
    return len(batch) == 1 or sum(tokens[i] for i in batch) <= budget
