"""Which decisions are trained, and what groups of rows have in common. Axes: B rows, T decision steps."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.algorithm import ScoredBatch
    from rlinf_core.objective.options import PolicyOptions
    from rlinf_core.rl.advantages import GroupStatistics


def trained_mask(batch: ScoredBatch, options: PolicyOptions) -> Tensor:
    """`[B, T]` bool: the batch's mask without rows that were cut, where the options say so."""
    return batch.mask_BT & ~(batch.truncated_B & options.mask_truncated)[:, None]


def group_metrics(statistics: GroupStatistics, algorithm: str) -> dict[str, float | tuple[float, float]]:
    """Share of groups with equal rewards, and groups of one, of which a person is warned."""
    singles = int((statistics.sizes_G == 1).sum())
    if singles:
        warnings.warn(
            f"{algorithm}: {singles} groups have one row only, so no baseline: their advantage is 0",
            RuntimeWarning,
            stacklevel=3,
        )
    return {
        "zero_variance_groups": (float(statistics.equal_G.sum()), float(len(statistics.equal_G))),
        "groups_of_one": (float(singles), 1.0),
    }
