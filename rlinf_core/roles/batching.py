"""How the rows of one step are shared between ranks and cut into micro-batches; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlinf_core.errors import ConfigError
from rlinf_core.types import Experience, Sample, Trajectory


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


def balanced_parts(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Deal positions to `parts` so that total weights are near equal (longest first, to the lightest)."""
    loads = [0] * parts
    dealt: list[list[int]] = [[] for _ in range(parts)]
    for position in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        lightest = loads.index(min(loads))
        dealt[lightest].append(position)
        loads[lightest] += weights[position]
    return dealt


def micro_batches(
    positions: Sequence[int], weights: Mapping[int, int] | Sequence[int], budget: int, most: int = 0
) -> list[list[int]]:
    """Cut positions into runs of similar length whose padded size stays within `budget` tokens, of at most
    `most` rows (0 = any number).

    A single row larger than the budget is one micro-batch of its own.
    """
    if budget < 1:
        raise ConfigError(f"train.micro_batch_tokens: {budget} is less than 1")
    ordered = sorted(positions, key=lambda i: (-weights[i], i))
    batches: list[list[int]] = []
    for position in ordered:
        count = len(batches[-1]) + 1 if batches else 0
        if batches and weights[batches[-1][0]] * count <= budget and not 0 < most < count:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def rank_micro_batches(
    positions: Sequence[int],
    weights: Mapping[int, int] | Sequence[int],
    ranks: int,
    budget: int,
    most: int = 0,
) -> list[list[list[int]]]:
    """Micro-batches of every rank; ranks with fewer get empty ones, so that all have equally many."""
    parts = balanced_parts([weights[i] for i in positions], ranks)
    cut = [micro_batches([positions[i] for i in part], weights, budget, most) for part in parts]
    most = max(1, max(len(batches) for batches in cut))
    return [batches + [[] for _ in range(most - len(batches))] for batches in cut]
