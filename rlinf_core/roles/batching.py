"""How the rows of one step are shared between ranks and cut into micro-batches; pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_core.errors import ConfigError
from rlinf_core.roles.partition import partition
from rlinf_core.types import Experience, Sample, Trajectory

Weights = Mapping[int, int] | Sequence[int] | Mapping[int, float] | Sequence[float]
WORTH_SHARING = 0.1  # of a group's tokens, from where its rows are dealt together


def row_tokens(row: Experience) -> int:
    """Positions that a forward pass over this row computes."""
    if isinstance(row, Trajectory):
        return len(row.actions)
    prompt = len(row.prompt.token_ids) if isinstance(row, Sample) else 0
    return prompt + len(row.mask)


def shared_prompts(rows: Mapping[int, Experience]) -> tuple[dict[int, int], dict[int, int]]:
    """Which of these rows have one prompt, as the number of a group, and how many tokens it has."""
    known: dict[bytes | int, int] = {}
    groups, prompts = {}, {}
    for position, row in rows.items():
        ids = row.prompt.token_ids if isinstance(row, Sample) else None
        groups[position] = known.setdefault(position if ids is None else ids.tobytes(), len(known))
        prompts[position] = 0 if ids is None else len(ids)
    return groups, prompts


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


@dataclass(frozen=True)
class Loads:
    """What rows weigh where padding is left out and rows of a group share a prompt."""

    tokens: Weights
    costs: Weights
    groups: Weights
    prompts: Weights | None = None  # tokens of each row that its group shares; None = none

    def saved(self, batch: Sequence[int]) -> float:
        """Tokens of prompts that others in the batch have too."""
        if self.prompts is None:
            return 0.0
        once = {self.groups[i]: self.prompts[i] for i in batch}
        return sum(self.prompts[i] for i in batch) - sum(once.values())

    def size(self, batch: Sequence[int]) -> float:
        """Tokens that are computed."""
        return sum(self.tokens[i] for i in batch) - self.saved(batch)

    def cost(self, batch: Sequence[int]) -> float:
        """Of computing the batch."""
        return sum(self.costs[i] for i in batch) - self.saved(batch)

    def units(self, positions: Sequence[int], budget: int) -> list[list[int]]:
        """What is dealt as a whole: groups, or parts of them that fit the budget, where a shared prompt saves
        much; else single rows."""
        groups: dict[float, list[int]] = {}
        for position in positions:
            groups.setdefault(self.groups[position], []).append(position)
        found: list[list[int]] = []
        for members in groups.values():
            shares = self.saved(members) >= WORTH_SHARING * sum(self.tokens[i] for i in members)
            found += self._parts(members, budget) if shares else [[i] for i in members]
        return found

    def _parts(self, members: Sequence[int], budget: int) -> list[list[int]]:
        """Of one group, none larger than the budget if that is possible."""
        parts: list[list[int]] = []
        size = 0.0
        shared = 0 if self.prompts is None else self.prompts[members[0]]
        for position in members:
            size += self.tokens[position] - shared
            if not parts or size > budget:
                parts.append([])
                size = self.tokens[position]
            parts[-1].append(position)
        return parts


def rank_micro_batches(
    positions: Sequence[int],
    tokens: Weights,
    ranks: int,
    budget: int,
    most: int = 0,
    *,
    costs: Weights | None = None,
    groups: Weights | None = None,
    prompts: Weights | None = None,
) -> list[list[list[int]]]:
    """Micro-batches of every rank, ranks of near equal cost (tokens, unless `costs` says better); ranks with
    fewer get empty ones, so that all have equally many.

    Rows are padded to the longest of a micro-batch, unless `groups` tells which rows share the tokens of
    `prompts`: then a micro-batch holds `budget` real tokens and all are of near equal cost, so that ranks
    that meet in each of them wait little. Rows stay with others of their group where that saves much.
    """
    if budget < 1:
        raise ConfigError(f"train.micro_batch_tokens: {budget} is less than 1")
    costs = tokens if costs is None else costs
    if groups is None:
        dealt = partition([costs[i] for i in positions], ranks)
        shares = [[positions[i] for i in part] for part in dealt]
        cut = [padded_micro_batches(share, tokens, budget, most) for share in shares]
    else:
        cut = _packed_micro_batches(positions, Loads(tokens, costs, groups, prompts), ranks, budget, most)
    count = max(1, max(len(batches) for batches in cut))
    return [batches + [[] for _ in range(count - len(batches))] for batches in cut]


def _packed_micro_batches(
    positions: Sequence[int], loads: Loads, ranks: int, budget: int, most: int
) -> list[list[list[int]]]:
    """Few micro-batches, about as many on each rank, that hold no more than the budget, or one row."""
    shares = [list(positions)]
    if ranks > 1:
        single = [[i] for i in positions]
        ways = [_dealt(units, loads, ranks) for units in (loads.units(positions, budget), single)]
        shares = min(ways, key=lambda way: max(map(loads.cost, way)))
    units = [loads.units(share, budget) if not most else [[i] for i in share] for share in shares]
    longest = max(map(len, units))
    count = min(longest, max(_least(share, loads, budget, most) for share in shares))
    while True:
        cut = [_dealt(each, loads, count, equal_counts=most > 0) for each in units]
        fits = all(len(batch) == 1 or loads.size(batch) <= budget for batches in cut for batch in batches)
        if fits or count >= longest:
            return [[batch for batch in batches if batch] for batches in cut]
        count = min(longest, count + 1 + count // 16)


def _dealt(
    units: Sequence[Sequence[int]], loads: Loads, parts: int, *, equal_counts: bool = False
) -> list[list[int]]:
    """Units in parts of near equal cost."""
    dealt = partition([loads.cost(unit) for unit in units], parts, equal_counts=equal_counts)
    return [sorted(i for number in part for i in units[number]) for part in dealt]


def _least(share: Sequence[int], loads: Loads, budget: int, most: int) -> int:
    """Micro-batches that cannot be done without."""
    rows = -(-len(share) // most) if most else 0
    prompts = loads.prompts
    own = [loads.tokens[i] - (0 if prompts is None else prompts[i]) for i in share]
    large = sum(2 * tokens > budget for tokens in own)  # two of them never fit together
    over = sum(max(0.0, loads.tokens[i] - budget) for i in share)
    return max(1, large, rows, math.ceil((loads.size(share) - over) / budget))
