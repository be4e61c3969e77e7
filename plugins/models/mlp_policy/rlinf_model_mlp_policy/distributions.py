"""The two action distributions, each with one definition for acting and for training.

Axes: C actions of a chunk, A action dimensions, K positions of a decision (1, C or C times A, by the level of
its log-probabilities); leading axes are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlinf_core.rl.logprobs import entropy, gather_logprobs
from rlinf_core.rl.noise import normals, uniforms

if TYPE_CHECKING:
    from rlinf_core.api.capabilities import LogprobLevel

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Gaussian:
    """Independent normal actions around `centre + half_range * means_CA`."""

    means_CA: Tensor  # [..., C, A]
    log_std_CA: Tensor  # [C, A]
    centre: float
    half_range: float

    def sample(self, seeds: Sequence[int], greedy: bool) -> Tensor:
        """`[N, C, A]` float32; row i from `seeds[i]`."""
        units = self.means_CA
        if not greedy:
            noise = normals(seeds, units[0].numel()).astype(np.float32)
            units = units + torch.from_numpy(noise).view_as(units).to(units) * self.log_std_CA.exp()
        return self.centre + self.half_range * units

    def logprobs_K(self, actions_CA: Tensor, executed_C: Tensor, level: LogprobLevel) -> Tensor:
        """Of what was executed of each position of the level; 0 where that is nothing."""
        units = (actions_CA - self.centre) / self.half_range
        z = (units - self.means_CA) * torch.exp(-self.log_std_CA)
        each_CA = -0.5 * z.square() - self.log_std_CA - (_HALF_LOG_2PI + math.log(self.half_range))
        return _at_level(each_CA, executed_C, level)

    def entropy_K(self, executed_C: Tensor, level: LogprobLevel) -> Tensor:
        """In nats, as `logprobs_K`."""
        each_CA = self.log_std_CA + (0.5 + _HALF_LOG_2PI + math.log(self.half_range))
        return _at_level(each_CA.expand(self.means_CA.shape), executed_C, level)


@dataclass(frozen=True)
class Categorical:
    """One of V discrete actions."""

    logits_V: Tensor  # [..., V]

    def sample(self, seeds: Sequence[int], greedy: bool) -> Tensor:
        """`[N]` int64, by inverse transform; row i from `seeds[i]`."""
        if greedy:
            return self.logits_V.argmax(-1)
        cumulative = torch.softmax(self.logits_V.double(), dim=-1).cumsum(-1)
        drawn = torch.from_numpy(uniforms(seeds, 1)).to(cumulative) * cumulative[..., -1:]
        chosen = torch.searchsorted(cumulative, drawn, right=True).squeeze(-1)
        return chosen.clamp(max=self.logits_V.shape[-1] - 1)

    def logprobs(self, actions: Tensor) -> Tensor:
        """Of the actions taken."""
        return gather_logprobs(self.logits_V, actions)

    def entropy(self) -> Tensor:
        """In nats."""
        return entropy(self.logits_V)


def _at_level(each_CA: Tensor, executed_C: Tensor, level: LogprobLevel) -> Tensor:
    if level == "token":
        return (each_CA * executed_C.unsqueeze(-1)).flatten(-2)
    if (
        level == "chunk" and executed_C.shape[-1] == 1
    ):  # the mask of the decision says whether it was executed
        return each_CA.sum(-1)
    each_C = each_CA.sum(-1) * executed_C
    return each_C if level == "action" else each_C.sum(-1, keepdim=True)
