"""Rows of episodes as tensors of their decisions, packed without padding.

Axes: B rows, D decisions of a row, M decisions of all rows, K tokens of a decision, C actions of a chunk,
L prompt tokens, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlinf_core.api.instructions import instruction_texts
from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from rlinf_core.types import Trajectory

Encode = Callable[[str], tuple[int, ...]]
INSTRUCTION = "instruction"


def collate(
    rows: Sequence[Trajectory], width: int, each: int, names: Sequence[str], prompts: Prompting
) -> dict[str, Tensor]:
    """The observations `names`, each `[M, ...]`; `prompts` `[M, L]`, `lengths` `[M]`, `drawn` `[M, K]`,
    `executed` `[M, C]`; `places` `[M]` of the decisions among B x D, `shape` (B, D, `width`)."""
    missing = [i for i, row in enumerate(rows) if row.latents is None]
    if missing:
        raise ModelError(
            f"{prompts.plugin}: row {missing[0]} holds no latents: it was not made by this model"
        )
    counts = [len(row.actions) for row in rows]
    decisions = -(-width // each)
    texts = [text for row in rows for text in prompts.texts(row.observations, len(row.actions))]
    ids_ML, lengths_M = padded([prompts.encode(text) for text in texts])
    places = [row * decisions + np.arange(count) for row, count in enumerate(counts)]
    seen = {name: _joined([row.observations[name] for row in rows]) for name in names}
    return seen | {
        "prompts": ids_ML,
        "lengths": lengths_M,
        "drawn": _joined([row.latents for row in rows]),
        "executed": _joined([_executed(row) for row in rows]),
        "places": torch.from_numpy(np.concatenate(places)),
        "shape": torch.tensor([len(rows), decisions, width]),
    }


class Prompting:
    """Instructions of observations, or the one of the settings of `plugin`, as token ids."""

    def __init__(self, encode: Encode, fallback: str, plugin: str) -> None:
        self.encode = encode
        self.plugin = plugin
        self._fallback = fallback

    def texts(self, observations: Mapping[str, Any], count: int) -> list[str]:
        """One a decision; Any: arrays or tensors. Raises `ModelError` if there is none."""
        given = observations.get(INSTRUCTION)
        if given is not None:
            return instruction_texts(np.asarray(given.cpu() if isinstance(given, Tensor) else given))
        if not self._fallback:
            raise ModelError(
                f"model {self.plugin} needs an instruction and the simulator gives none; set "
                "model.instruction"
            )
        return [self._fallback] * count


def padded(prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """`[M, L]` with zeros behind them, and their lengths."""
    lengths_M = torch.tensor([len(ids) for ids in prompts])
    ids_ML = np.zeros((len(prompts), int(lengths_M.max())), dtype=np.int64)
    for row_L, ids in zip(ids_ML, prompts, strict=True):
        row_L[: len(ids)] = ids
    return torch.from_numpy(ids_ML), lengths_M


def spread(values_MK: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """`[B, T]` of `[M, K]`; 0 past a row's end."""
    rows, decisions, width = inputs["shape"].tolist()
    each = values_MK.shape[1]
    blank = values_MK.new_zeros(rows * decisions, each)
    filled = blank.index_copy(0, inputs["places"], values_MK)
    return filled.view(rows, decisions * each)[:, :width]


def _executed(row: Trajectory) -> Any:  # Any: a numpy array
    return np.ones(row.actions.shape[:2], dtype=bool) if row.executed is None else row.executed


def _joined(columns: Sequence[Any]) -> Tensor:  # Any: numpy arrays of one dtype
    return torch.from_numpy(np.concatenate(columns))
