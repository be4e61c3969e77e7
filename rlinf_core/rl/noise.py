"""Counter-based random numbers: row i depends on seed i alone, so batches may be composed freely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seeds: Sequence[int] | NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """`[N, count]` numbers in the open interval (0, 1), by two rounds of splitmix64 (Steele et al. 2014)
    over seed and counter. Seeds are taken modulo 2**64."""
    counters = np.arange(1, count + 1, dtype=np.uint64)
    bits = _splitmix(_splitmix(_modulo(seeds))[:, None] + counters * _GOLDEN)
    high: NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64)
    return (high + 0.5) * 2.0**-53


def normals(seeds: Sequence[int] | NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """`[N, count]` standard normal numbers (Box and Muller 1958)."""
    pairs = (count + 1) // 2
    drawn = uniforms(seeds, 2 * pairs)
    radius = np.sqrt(-2.0 * np.log(drawn[:, :pairs]))
    angle = 2.0 * np.pi * drawn[:, pairs:]
    both: NDArray[np.float64] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return both[:, :count]


def _modulo(seeds: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint64]:
    array = np.asarray(seeds)
    if array.dtype.kind in "iu":
        return array.astype(np.uint64)
    return np.array([int(seed) & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)


def _splitmix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Arrays of integers wrap around without a word, as they should here."""
    mixed = state + _GOLDEN
    mixed ^= mixed >> _SHIFTS[0]
    mixed *= _FACTORS[0]
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _FACTORS[1]
    mixed ^= mixed >> _SHIFTS[2]
    return mixed
