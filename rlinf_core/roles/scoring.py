"""Rows of numpy arrays to right-padded tensors. Axes: B rows, T decision steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_core.api import ScoredBatch
from rlinf_core.types import Experience, Trajectory


def pad_rows(rows: Sequence[Any], dtype: Any) -> Tensor:  # Any: numpy arrays and a numpy dtype
    """Stack 1-D arrays of different lengths into `[B, T]`, zeros on the right."""
    width = max((len(row) for row in rows), default=0)
    out = np.zeros((len(rows), width), dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def scored_batch(
    rows: Sequence[Experience], *, version: int | None = None, max_length: int = 0
) -> ScoredBatch:
    """The batch that advantages are computed from; every row has a reward.

    `version` is that of the policy's weights, if they are known; `max_length` the most decisions of a row.
    """
    return ScoredBatch(
        rewards_B=torch.tensor([row.reward for row in rows], dtype=torch.float32),
        groups_B=torch.tensor([row.group for row in rows], dtype=torch.int64),
        mask_BT=pad_rows([row.mask for row in rows], bool),
        logprobs_BT=pad_rows([row.logprobs for row in rows], np.float32),
        truncated_B=torch.tensor([_truncated(row) for row in rows]),
        step_rewards_BT=_optional([row.step_rewards for row in rows]),
        reference_logprobs_BT=_optional([row.reference_logprobs for row in rows]),
        values_BT=_optional([row.values for row in rows]),
        final_values_B=torch.tensor([row.final_value for row in rows], dtype=torch.float32),
        baselines_B=_numbers([row.baseline for row in rows]),
        staleness_B=_staleness(rows, version),
        positions=max((_positions(row) for row in rows), default=1),
        max_length=max_length,
    )


def _truncated(row: Experience) -> bool:
    return row.truncated if isinstance(row, Trajectory) else row.finish == "length"


def _positions(row: Experience) -> int:
    return len(row.mask) // len(row.actions) if isinstance(row, Trajectory) and len(row.actions) else 1


def _staleness(rows: Sequence[Experience], version: int | None) -> Tensor | None:
    if version is None:
        return None
    return torch.tensor([version - row.weight_version for row in rows], dtype=torch.int64)


def _numbers(column: Sequence[float | None]) -> Tensor | None:
    return None if any(value is None for value in column) else torch.tensor(column, dtype=torch.float32)


def _optional(columns: Sequence[Any]) -> Tensor | None:
    return None if any(column is None for column in columns) else pad_rows(columns, np.float32)
