"""Actions that somebody else chose, as the flow learns them: noised to a time that is drawn for each.

The network is to say the velocity from actions `a` to noise `n` where it stands, `x = t n + (1 - t) a` (flow
matching, Lipman et al. 2023), at times `t = 0.999 b + 0.001` with b of the Beta(1.5, 1) distribution (pi0).
The "log-probability" of an action is minus its squared error: that of a normal number of variance 1/2, up to
a constant.

Axes: N decisions, C actions of a chunk, A action dimensions, K + 1 states of a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlinf_core.rl.noise import normals, uniforms

_TIMES = 0x7F4A7C15  # seeds of times are the decisions' plus this


@dataclass(frozen=True)
class Matching:
    """Where decisions stand, at what time, and the velocity that is wanted there."""

    time_M: Tensor  # in (0, 1]
    state_MCA: Tensor
    wanted_MCA: Tensor

    @classmethod
    def drawn(cls, units_NCA: Tensor, seeds: Sequence[int]) -> Matching:
        """Of actions in the network's units; row i from `seeds[i]`."""
        count = int(np.prod(units_NCA.shape[1:]))
        noise_NCA = torch.from_numpy(normals(seeds, count).astype(np.float32)).view(units_NCA.shape)
        even_N = uniforms([int(seed) + _TIMES for seed in seeds], 1)[:, 0]
        time_N = torch.from_numpy((0.999 * even_N ** (1 / 1.5) + 0.001).astype(np.float32))
        t_N11 = time_N[:, None, None]
        return cls(time_N, t_N11 * noise_NCA + (1.0 - t_N11) * units_NCA, noise_NCA - units_NCA)

    def packed(self, states: int) -> Tensor:
        """As long as a chain of so many states, which it differs from by a first number below 0."""
        both_NKCA = torch.stack([self.state_MCA, self.wanted_MCA], dim=1)
        row = torch.cat([-self.time_M[:, None], both_NKCA.flatten(1)], dim=1)
        return functional.pad(row, (0, (states - 2) * self.state_MCA[0].numel()))

    @classmethod
    def unpacked(cls, latents: Tensor, chunk: int, dimensions: int) -> Matching:
        """What `packed` gave."""
        states_MKCA = latents[:, 1:].view(len(latents), -1, chunk, dimensions)
        return cls(-latents[:, 0], states_MKCA[:, 0], states_MKCA[:, 1])


def is_matching(latents: Tensor) -> bool:
    """Whether these rows are actions to learn from, not chains that were drawn."""
    return bool((latents[:, 0] < 0).all())
