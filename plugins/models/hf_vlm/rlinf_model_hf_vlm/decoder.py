"""Incremental decoding through the model's own layers and cache.

Axes: R rows, U distinct prompts, V vocabulary, W columns of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlinf_core.api import Decoder
from rlinf_core.types import Prompt
from rlinf_model_hf_vlm.architecture import logits
from rlinf_model_hf_vlm.forward import read_prompts, read_tokens
from rlinf_model_hf_vlm.rows import prompt_inputs

if TYPE_CHECKING:
    from rlinf_core.types import IntArray
    from rlinf_model_hf_vlm.processor import VisionProcessor


class VisionDecoder(Decoder):
    """Rows admitted together share a cache; a prompt that several of them have is read once. Such batches
    advance one after another."""

    def __init__(self, module: nn.Module, processor: VisionProcessor) -> None:
        self._module = module
        self._processor = processor
        self._batches: list[_Batch] = []

    def refresh(self) -> None:
        """The module is called itself, so new weights are seen without more."""

    def prefill(self, slots: Sequence[int], prompts: Sequence[IntArray]) -> Tensor:
        return self.prefill_prompts(slots, [Prompt(index=0, token_ids=ids, text="") for ids in prompts])

    @torch.inference_mode()
    def prefill_prompts(self, slots: Sequence[int], prompts: Sequence[Prompt]) -> Tensor:
        device = next(self._module.parameters()).device
        inputs = {name: value.to(device) for name, value in prompt_inputs(prompts, self._processor).items()}
        seen, of_R = read_prompts(self._module, inputs), inputs["prompt_of"]
        seen.cache.batch_select_indices(of_R)
        self._batches.append(_Batch(list(slots), seen.cache, seen.mask_UP[of_R], seen.next_U[of_R]))
        logits_UV = logits(self._module, seen.last_UE).float()
        return logits_UV[of_R]

    @torch.inference_mode()
    def step(self, slots: Sequence[int], tokens: Tensor) -> Tensor:
        place = {slot: row for row, slot in enumerate(slots)}
        parts, order = [], []
        for batch in self._batches:
            rows = [place[slot] for slot in batch.slots]
            order += rows
            parts.append(batch.advance(self._module, tokens[rows]))
        logits_RV = logits(self._module, torch.cat(parts)).float()
        sorted_RV = torch.empty_like(logits_RV)
        sorted_RV[order] = logits_RV
        return sorted_RV

    def release(self, slots: Sequence[int]) -> None:
        gone = set(slots)
        for batch in self._batches:
            batch.keep([row for row, slot in enumerate(batch.slots) if slot not in gone])
        self._batches = [batch for batch in self._batches if batch.slots]


@dataclass
class _Batch:
    """Rows that share one cache object."""

    slots: list[int]
    cache: Any  # Any: transformers' cache
    mask_RW: Tensor
    next_R: Tensor  # the position of the next token

    def advance(self, module: nn.Module, tokens_R: Tensor) -> Tensor:
        """Append a token to every row; returns the hidden states `[R, E]`."""
        self.mask_RW = torch.cat([self.mask_RW, self.mask_RW.new_ones(len(self.slots), 1)], dim=1)
        hidden = read_tokens(module, tokens_R[:, None], self.mask_RW, self.next_R[:, None], self.cache)
        self.next_R = self.next_R + 1
        return hidden[:, 0]

    @torch.inference_mode()
    def keep(self, rows: list[int]) -> None:
        """Drop all other rows."""
        if len(rows) == len(self.slots):
            return
        self.slots = [self.slots[row] for row in rows]
        if rows:
            index = torch.tensor(rows, device=self.mask_RW.device)
            self.mask_RW, self.next_R = self.mask_RW[index], self.next_R[index]
            self.cache.batch_select_indices(index)
