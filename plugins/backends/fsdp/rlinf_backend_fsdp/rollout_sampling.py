"""Draws tokens by inverse CDF with one uniform per (seed, position), so that what a row draws does
not depend on the rows beside it.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_core.rl.logprobs import apply_sampling_transform, is_identity

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.types import Sampling

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def seed_keys(seeds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The generator key of each seed; nearby seeds give unrelated keys."""
    return _mix(seeds.astype(np.uint64) * _GAMMA + _FIRST)


def uniforms(keys_R: NDArray[np.uint64], positions_R: NDArray[np.int64]) -> NDArray[np.float32]:
    """SplitMix64 (Steele, Lea and Flood 2014) of key and position, as multiples of 2^-23 in [0, 1).

    23 bits keep `uniform * total` below `total` in float32, so that the last token of the CDF is
    never passed.
    """
    bits = _mix(keys_R + (positions_R.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return (bits >> np.uint64(41)).astype(np.float32) * np.float32(2.0**-23)


def draw(logits_RV: Tensor, uniforms_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens `[R]` and their float32 log-probabilities under the transformed distribution.

    The first token whose cumulated probability exceeds the uniform is taken; a token of
    probability 0 never is.
    """
    if not is_identity(sampling):
        logits_RV = apply_sampling_transform(logits_RV, sampling)
    probabilities_RV = torch.softmax(logits_RV, dim=-1)
    if sampling.temperature == 0.0:
        tokens_R1 = logits_RV.argmax(-1, keepdim=True)
    else:
        cumulated_RV = probabilities_RV.cumsum(-1)
        target_R1 = cumulated_RV[:, -1:] * uniforms_R[:, None]
        tokens_R1 = torch.searchsorted(cumulated_RV, target_R1, right=True)
        tokens_R1.clamp_(max=logits_RV.shape[-1] - 1)  # of logits that are no numbers; training will tell
    return tokens_R1.squeeze(1), probabilities_RV.gather(1, tokens_R1).squeeze(1).log_()


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))
