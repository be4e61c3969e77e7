"""Incremental decoding through the module's own forward and cache, for any architecture.

Axes: R rows, V vocabulary, W columns of the cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from rlinf_core.api import Decoder
from rlinf_model_hf_lm.architecture import causal_lm

if TYPE_CHECKING:
    from rlinf_core.types import IntArray


class GenericDecoder(Decoder):
    """Rows admitted together form a batch with a left-padded cache of its own; rows that end leave
    it. Batches advance one after another, since a cache's rows must have one width."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        parameters = inspect.signature(type(causal_lm(module)).forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._batches: list[_Batch] = []

    def refresh(self) -> None:
        """The module is called itself, so new weights are seen without more."""

    @torch.inference_mode()
    def prefill(self, slots: Sequence[int], prompts: Sequence[IntArray]) -> Tensor:
        width = max(len(prompt) for prompt in prompts)
        ids_RW = np.zeros((len(prompts), width), np.int64)
        mask_RW = np.zeros((len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            ids_RW[row, width - len(prompt) :] = prompt
            mask_RW[row, width - len(prompt) :] = 1
        device = next(self._module.parameters()).device
        cache = DynamicCache(config=causal_lm(self._module).config)
        batch = _Batch(list(slots), cache, torch.from_numpy(mask_RW).to(device))
        self._batches.append(batch)
        return self._advance(batch, torch.from_numpy(ids_RW).to(device))

    @torch.inference_mode()
    def step(self, slots: Sequence[int], tokens: Tensor) -> Tensor:
        place = {slot: row for row, slot in enumerate(slots)}
        parts, order = [], []
        for batch in self._batches:
            rows = [place[slot] for slot in batch.slots]
            order += rows
            batch.mask_RW = torch.cat([batch.mask_RW, batch.mask_RW.new_ones(len(rows), 1)], dim=1)
            parts.append(self._advance(batch, tokens[rows, None]))
        logits_RV = torch.cat(parts)
        if order == list(range(len(order))):
            return logits_RV
        sorted_RV = torch.empty_like(logits_RV)
        sorted_RV[order] = logits_RV
        return sorted_RV

    def release(self, slots: Sequence[int]) -> None:
        gone = set(slots)
        for batch in self._batches:
            kept = [row for row, slot in enumerate(batch.slots) if slot not in gone]
            if 0 < len(kept) < len(batch.slots):
                batch.keep(kept)
            elif not kept:
                batch.slots = []
        self._batches = [batch for batch in self._batches if batch.slots]

    def _advance(self, batch: _Batch, ids_RS: Tensor) -> Tensor:
        positions = (batch.mask_RW.cumsum(1) - 1).clamp_min(0)[:, -ids_RS.shape[1] :]
        options: dict[str, Any] = {self._cache_name: batch.cache, "logits_to_keep": 1}
        output: Any = self._module(
            input_ids=ids_RS,
            attention_mask=batch.mask_RW,
            position_ids=positions,
            use_cache=True,
            **options,
        )
        logits_RV: Tensor = output.logits[:, -1].float()
        return logits_RV


class _Batch:
    """Rows that share one cache object."""

    def __init__(self, slots: list[int], cache: Any, mask_RW: Tensor) -> None:
        self.slots = slots
        self.cache = cache  # Any: transformers' cache
        self.mask_RW = mask_RW

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        """Drop all other rows."""
        index = torch.tensor(rows, device=self.mask_RW.device)
        self.slots = [self.slots[row] for row in rows]
        self.mask_RW = self.mask_RW[index]
        self.cache.batch_select_indices(index)
