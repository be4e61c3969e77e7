"""A key/value cache whose rows all end at the same column, so that a step writes one column and
attention reads one contiguous window.

A row of length n occupies columns `clock - n` to `clock`. Rows are kept dense: a freed row is filled
with the last one. Columns left of every row's start are given back by shifting when the buffer ends.

Axes: L layers, R rows, K key/value heads, C columns, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

GROWTH = 64  # columns by which the buffer is longer than what it has to hold


class SlotCache:
    """Keys and values `[L, R, K, C, D]` and the additive mask `[R, K, C]` that hides a row's past."""

    def __init__(
        self, layers: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.clock = 0  # the column that the next token is written to
        self.starts: list[int] = []  # first column of each row
        self._shape = (layers, heads, head_dim)
        self._dtype, self._device = dtype, device
        self._allocate(0, 0)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def first(self) -> int:
        """The leftmost column that any row reads."""
        return min(self.starts)

    def memory_bytes(self) -> float:
        """Of the buffers, free rows included."""
        return float(self.keys.nbytes + self.values.nbytes + self.mask.nbytes)

    @property
    def even(self) -> bool:
        """True when all rows have one length, so that no mask is needed."""
        return min(self.starts) == max(self.starts)

    def open(self, lengths: Sequence[int]) -> slice:
        """Add rows of these lengths, contents to be written by the caller; returns the new rows."""
        had, longest = len(self), max(lengths)
        if not had:
            self.clock = longest
        if self.clock < longest:
            self._shift(longest - self.clock)
        self._reserve(had + len(lengths), self.clock + 1)
        self.starts += [self.clock - length for length in lengths]
        self._hide(had)
        return slice(had, len(self))

    def advance(self) -> int:
        """Make room for one more column; returns its number."""
        if self.clock == self.keys.shape[3]:
            spare = self.first
            if 2 * spare >= self.clock:
                self._shift(-spare)
            else:
                self._reserve(len(self), self.clock + 1)
        self.clock += 1
        return self.clock - 1

    def close(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Free rows; returns the moves `(from, to)` of rows that filled the holes."""
        gone = set(rows)
        kept = len(self) - len(gone)
        sources = [row for row in range(kept, len(self)) if row not in gone]
        moves = list(zip(sources, sorted(row for row in gone if row < kept), strict=True))
        for source, target in moves:
            begin = self.starts[source]
            self.keys[:, target, :, begin : self.clock] = self.keys[:, source, :, begin : self.clock]
            self.values[:, target, :, begin : self.clock] = self.values[:, source, :, begin : self.clock]
            self.mask[target] = self.mask[source]
            self.starts[target] = begin
        del self.starts[kept:]
        return moves

    def _hide(self, begin: int) -> None:
        """Mask what lies left of the starts of row `begin` and those after it."""
        starts_R = torch.tensor(self.starts[begin:], device=self.mask.device)
        columns_C = torch.arange(self.mask.shape[2], device=self.mask.device)
        hidden_R1C = (columns_C < starts_R[:, None])[:, None]
        self.mask[begin : len(self)] = torch.zeros_like(hidden_R1C, dtype=self.mask.dtype).masked_fill(
            hidden_R1C, -torch.inf
        )

    def _shift(self, columns: int) -> None:
        """Move every row right (left if negative), whatever lies in the way being unused."""
        begin, end, rows = self.first, self.clock, len(self)
        self._reserve(rows, end + columns)
        for buffer in (self.keys, self.values):
            window = buffer[:, :rows, :, begin:end].clone()
            buffer[:, :rows, :, begin + columns : end + columns] = window
        self.clock += columns
        self.starts = [start + columns for start in self.starts]
        self._hide(0)

    def _reserve(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self.mask.shape[0], self.mask.shape[2]
        if rows <= have_rows and columns <= have_columns:
            return
        old = (self.keys, self.values, self.mask)
        if columns > have_columns:
            columns = columns + max(GROWTH, columns // 2)
        self._allocate(max(rows, have_rows), max(columns, have_columns))
        for new, source in zip((self.keys, self.values), old, strict=False):
            new[:, :have_rows, :, :have_columns] = source
        self._hide(0)

    def _allocate(self, rows: int, columns: int) -> None:
        layers, heads, head_dim = self._shape
        # zeros, not empty: attention multiplies hidden columns by exactly 0, which NaN would survive
        self.keys = torch.zeros(
            layers, rows, heads, columns, head_dim, dtype=self._dtype, device=self._device
        )
        self.values = torch.zeros_like(self.keys)
        self.mask = torch.zeros(rows, heads, columns, dtype=self._dtype, device=self._device)
