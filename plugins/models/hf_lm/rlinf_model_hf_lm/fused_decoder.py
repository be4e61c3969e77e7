"""Incremental decoding for the Llama family: packed weights, one attention window for all rows.

Axes: R rows, U distinct prompts, S prompt positions, H query heads, K key/value heads, G query heads a
key/value head, D head dimension, W columns of the attention window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf_core.api import Decoder
from rlinf_model_hf_lm.architecture import causal_lm
from rlinf_model_hf_lm.packed import Block, Packed, pack
from rlinf_model_hf_lm.rotary import rotate, signed_sine
from rlinf_model_hf_lm.slot_cache import SlotCache

if TYPE_CHECKING:
    from rlinf_core.types import IntArray


class FusedDecoder(Decoder):
    """Decodes rows of any lengths together; equal prompts are computed once."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        config = causal_lm(module).config
        self._module = module
        self._dtype = dtype
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._scale = self._head_dim**-0.5
        self._device = next(module.parameters()).device
        self._cache = SlotCache(config.num_hidden_layers, self._kv_heads, self._head_dim, dtype, self._device)
        self._slots: list[int] = []  # slot of each cache row
        self._positions_R = torch.zeros(0, dtype=torch.int64, device=self._device)
        self._cos_sin = self._angles(0)
        self._order: tuple[tuple[int, ...], Tensor, Tensor] | None = None
        self.refresh()

    @torch.inference_mode()
    def refresh(self) -> None:
        """Pack the module's weights again."""
        self._packed: Packed = pack(self._module, self._dtype)

    @torch.inference_mode()
    def prefill(self, slots: Sequence[int], prompts: Sequence[IntArray]) -> Tensor:
        keys = [prompt.tobytes() for prompt in prompts]
        number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        distinct = [np.frombuffer(key, prompts[0].dtype) for key in number]
        copies_R = torch.tensor([number[key] for key in keys], device=self._device)
        lengths = [len(prompt) for prompt in prompts]
        rows = self._cache.open(lengths)
        self._slots += slots
        self._order = None
        added_R = torch.tensor(lengths, device=self._device)
        self._positions_R = torch.cat([self._positions_R, added_R])
        return self._prompt_logits(distinct, copies_R, rows)[copies_R]

    @torch.inference_mode()
    def step(self, slots: Sequence[int], tokens: Tensor) -> Tensor:
        to_rows, to_slots = self._orders(slots)
        hidden_RE = functional.embedding(tokens[to_rows], self._packed.embedding)
        column = self._cache.advance()
        cos, sin = self._rotations(self._positions_R)
        self._positions_R += 1
        window = slice(self._cache.first, column + 1)
        mask = None if self._cache.even else self._mask(window)
        for index, block in enumerate(self._packed.blocks):
            hidden_RE = self._step_block(index, block, hidden_RE, cos, sin, window, mask)
        return self._head(hidden_RE[to_slots])

    @torch.inference_mode()
    def release(self, slots: Sequence[int]) -> None:
        gone = set(slots)
        rows = [row for row, slot in enumerate(self._slots) if slot in gone]
        kept = len(self._slots) - len(rows)
        for source, target in self._cache.close(rows):
            self._slots[target] = self._slots[source]
            self._positions_R[target] = self._positions_R[source]
        del self._slots[kept:]
        self._positions_R = self._positions_R[:kept].clone()
        self._order = None

    def memory_bytes(self) -> float:
        """Keys, values and mask."""
        return self._cache.memory_bytes()

    def _step_block(
        self,
        index: int,
        block: Block,
        hidden_RE: Tensor,
        cos: Tensor,
        sin: Tensor,
        window: slice,
        mask: Tensor | None,
    ) -> Tensor:
        rows = len(hidden_RE)
        heads, kv_heads, head_dim = self._heads, self._kv_heads, self._head_dim
        qkv = block.qkv(self._norm(hidden_RE, block.attention_norm)).view(
            rows, heads + 2 * kv_heads, head_dim
        )
        queries_keys = rotate(self._normed(block, qkv), cos, sin)
        keys, values = self._cache.keys[index, :rows], self._cache.values[index, :rows]
        keys[:, :, window.stop - 1] = queries_keys[:, heads:]
        values[:, :, window.stop - 1] = qkv[:, heads + kv_heads :]
        keys_W = keys[:, :, window].flatten(0, 1)
        values_W = values[:, :, window].flatten(0, 1)
        queries = queries_keys[:, :heads].reshape(rows * kv_heads, heads // kv_heads, head_dim)
        if mask is None:
            scores = torch.bmm(queries, keys_W.transpose(1, 2)).mul_(self._scale)
        else:
            scores = torch.baddbmm(mask, queries, keys_W.transpose(1, 2), alpha=self._scale)
        attended = torch.bmm(torch.softmax(scores, dim=-1), values_W)
        return self._mlp(block, hidden_RE + block.out(attended.view(rows, -1)))

    def _prompt_logits(self, prompts: Sequence[IntArray], copies_R: Tensor, rows: slice) -> Tensor:
        """Logits `[U, V]` after each prompt; writes its keys and values into every row that has it."""
        width = max(len(prompt) for prompt in prompts)
        ids_US = np.zeros((len(prompts), width), np.int64)
        pads = np.array([width - len(prompt) for prompt in prompts])
        for row, prompt in zip(ids_US, prompts, strict=True):
            row[width - len(prompt) :] = prompt
        pads_U = torch.from_numpy(pads).to(self._device)
        steps_S = torch.arange(width, device=self._device)
        cos, sin = self._rotations((steps_S - pads_U[:, None]).clamp_min(0))
        mask = _left_padding_mask(pads_U, steps_S) if pads.any() else None
        hidden = functional.embedding(torch.from_numpy(ids_US).to(self._device), self._packed.embedding)
        columns = slice(self._cache.clock - width, self._cache.clock)
        for index, block in enumerate(self._packed.blocks):
            queries, keys, values = self._prompt_qkv(block, hidden, cos, sin)
            self._cache.keys[index, rows, :, columns] = keys[copies_R]
            self._cache.values[index, rows, :, columns] = values[copies_R]
            attended = functional.scaled_dot_product_attention(
                *(queries, keys, values),
                attn_mask=mask,
                is_causal=mask is None and width > 1,
                scale=self._scale,
                enable_gqa=self._heads != self._kv_heads,
            )
            hidden = hidden + block.out(attended.transpose(1, 2).flatten(2))
            hidden = self._mlp(block, hidden)
        return self._head(hidden[:, -1])

    def _prompt_qkv(self, block: Block, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        heads, kv_heads = self._heads, self._kv_heads
        qkv = block.qkv(self._norm(hidden, block.attention_norm)).unflatten(-1, (-1, self._head_dim))
        queries_keys = rotate(self._normed(block, qkv), cos, sin).transpose(1, 2)
        values = qkv[:, :, heads + kv_heads :].transpose(1, 2)
        return queries_keys[:, :heads], queries_keys[:, heads:], values

    def _normed(self, block: Block, qkv: Tensor) -> Tensor:
        """Queries and keys side by side, normalised where the architecture does that (Qwen3)."""
        if block.query_norm is None or block.key_norm is None:
            return qkv[..., : self._heads + self._kv_heads, :]
        queries = self._norm(qkv[..., : self._heads, :], block.query_norm)
        keys = self._norm(qkv[..., self._heads : self._heads + self._kv_heads, :], block.key_norm)
        return torch.cat([queries, keys], dim=-2)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self._packed.eps)

    def _mlp(self, block: Block, hidden: Tensor) -> Tensor:
        gate, up = block.gate_up(self._norm(hidden, block.mlp_norm)).chunk(2, dim=-1)
        return hidden + block.down(functional.silu(gate) * up)

    def _head(self, hidden_RE: Tensor) -> Tensor:
        logits_RV: Tensor = functional.linear(self._norm(hidden_RE, self._packed.norm), self._packed.head)
        return logits_RV.float()

    def _rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self._cache.clock >= len(self._cos_sin[0]):
            self._cos_sin = self._angles(2 * self._cache.clock + 64)
        cos, sin = self._cos_sin
        return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)

    @torch.inference_mode()
    def _angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines `[length, D]`, from the module's own rotary embedding."""
        positions = torch.arange(length, device=self._device)[None]
        like = torch.zeros(1, dtype=torch.float32, device=self._device)
        cos, sin = causal_lm(self._module).model.rotary_emb(like, positions)
        return cos[0].to(self._dtype), signed_sine(sin[0]).to(self._dtype)

    def _mask(self, window: slice) -> Tensor:
        rows = len(self._cache)
        mask = self._cache.mask[:rows, :, window].flatten(0, 1)[:, None]
        return mask.expand(-1, self._heads // self._kv_heads, -1)

    def _orders(self, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Index tensors from the caller's order of slots to cache rows, and back."""
        asked = tuple(slots)
        if self._order is None or self._order[0] != asked:
            place = {slot: index for index, slot in enumerate(asked)}
            to_rows = torch.tensor([place[slot] for slot in self._slots], device=self._device)
            to_slots = torch.empty_like(to_rows)
            to_slots[to_rows] = torch.arange(len(asked), device=self._device)
            self._order = (asked, to_rows, to_slots)
        return self._order[1], self._order[2]


def _left_padding_mask(pads_U: Tensor, steps_S: Tensor) -> Tensor:
    """`[U, 1, S, S]`: causal, padding hidden; a padding position sees itself, to stay finite."""
    causal_SS = steps_S[:, None] >= steps_S
    seen_USS = causal_SS & (steps_S >= pads_U[:, None])[:, None]
    return (seen_USS | (steps_S[:, None] == steps_S))[:, None]
