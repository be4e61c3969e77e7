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


def scored_batch(rows: Sequence[Experience]) -> ScoredBatch:
    """The batch that advantages are computed from; every row has a reward."""
    return ScoredBatch(
        rewards_B=torch.tensor([row.reward for row in rows], dtype=torch.float32),
        groups_B=torch.tensor([row.group for row in rows], dtype=torch.int64),
        mask_BT=pad_rows([row.mask for row in rows], bool),
        logprobs_BT=pad_rows([row.logprobs for row in rows], np.float32),
        truncated_B=torch.tensor([_truncated(row) for row in rows]),
        step_rewards_BT=_optional([row.step_rewards for row in rows]),
        reference_logprobs_BT=_optional([row.reference_logprobs for row in rows]),
        values_BT=_optional([row.values for row in rows]),
    )


def _truncated(row: Experience) -> bool:
    return row.truncated if isinstance(row, Trajectory) else row.finish == "length"


def _optional(columns: Sequence[Any]) -> Tensor | None:
    return None if any(column is None for column in columns) else pad_rows(columns, np.float32)
