"""The action distributions, each with one definition for acting and for training.

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
from torch.nn import functional

from rlinf_core.rl.logprobs import entropy, gather_logprobs
from rlinf_core.rl.noise import normals, uniforms

if TYPE_CHECKING:
    from rlinf_core.api.capabilities import LogprobLevel

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_NODES = 32  # of the integral in a squashed entropy, which is within 0.0002 nats for deviations up to 2
_INSIDE = 1.0 - 1e-6


@dataclass(frozen=True)
class Gaussian:
    """Independent normal actions around `centre + half_range * means_CA`."""

    means_CA: Tensor  # [..., C, A]
    log_std_CA: Tensor  # [C, A], or [..., C, A]
    centre: float
    half_range: float

    def draw(self, seeds: Sequence[int], greedy: bool) -> Tensor:
        """`[N, C, A]` float32, what is judged; row i from `seeds[i]`."""
        return self.centre + self.half_range * self._units(seeds, greedy)

    def actions(self, drawn_CA: Tensor) -> Tensor:
        """What was drawn."""
        return drawn_CA

    def drawn(self, actions_CA: Tensor) -> Tensor:
        """What would have been drawn for these actions."""
        return actions_CA

    def logprobs_K(self, drawn_CA: Tensor, executed_C: Tensor, level: LogprobLevel) -> Tensor:
        """Of what was executed of each position of the level; 0 where that is nothing."""
        plain = (self.centre, self.half_range) == (0.0, 1.0)  # then actions are units already
        units_CA = drawn_CA if plain else (drawn_CA - self.centre) / self.half_range
        return _at_level(self._each(units_CA), executed_C, level)

    def entropy_K(self, executed_C: Tensor, level: LogprobLevel) -> Tensor:
        """In nats, as `logprobs_K`."""
        found_K = _at_level(self._entropies(), executed_C, level)
        return found_K.expand(*self.means_CA.shape[:-2], found_K.shape[-1])

    def _units(self, seeds: Sequence[int], greedy: bool) -> Tensor:
        units_CA = self.means_CA
        if greedy:
            return units_CA
        noise = normals(seeds, units_CA[0].numel()).astype(np.float32)
        return units_CA + torch.from_numpy(noise).view_as(units_CA).to(units_CA) * self.log_std_CA.exp()

    def _each(self, units_CA: Tensor) -> Tensor:
        """Log-densities of the actions that these units make."""
        z = (units_CA - self.means_CA) * torch.exp(-self.log_std_CA)
        return -0.5 * z.square() - self.log_std_CA - (_HALF_LOG_2PI + math.log(self.half_range))

    def _entropies(self) -> Tensor:
        return self.log_std_CA + (0.5 + _HALF_LOG_2PI + math.log(self.half_range))


class Squashed(Gaussian):
    """Normal units `u` around `means_CA` that become actions `centre + half_range * tanh(u)`.

    The units are what is judged, for an action near the edge does not tell its unit. The density of an
    action is that of its unit divided by `half_range (1 - tanh(u)^2)`. Its entropy is the normal one plus the
    expected logarithm of that, which is integrated by Gauss-Hermite quadrature.
    """

    def draw(self, seeds: Sequence[int], greedy: bool) -> Tensor:
        """`[N, C, A]` units."""
        return self._units(seeds, greedy)

    def actions(self, drawn_CA: Tensor) -> Tensor:
        """Within the range."""
        return self.centre + self.half_range * torch.tanh(drawn_CA)

    def drawn(self, actions_CA: Tensor) -> Tensor:
        """The units of these actions; of the edge and what lies outside, those of what is just inside."""
        inside = (actions_CA - self.centre) / self.half_range
        return torch.atanh(inside.clamp(-_INSIDE, _INSIDE))

    def logprobs_K(self, drawn_CA: Tensor, executed_C: Tensor, level: LogprobLevel) -> Tensor:
        """Of the actions that these units make."""
        return _at_level(self._each(drawn_CA) - _log_slope(drawn_CA), executed_C, level)

    def _entropies(self) -> Tensor:
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        nodes_M = torch.from_numpy(nodes).to(self.means_CA)
        weights_M = torch.from_numpy(weights / weights.sum()).to(self.means_CA)
        units_CAM = self.means_CA[..., None] + self.log_std_CA.exp()[..., None] * nodes_M
        return super()._entropies() + (_log_slope(units_CAM) * weights_M).sum(-1)


@dataclass(frozen=True)
class Categorical:
    """One of V discrete actions."""

    logits_V: Tensor  # [..., V]

    def draw(self, seeds: Sequence[int], greedy: bool) -> Tensor:
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


def _log_slope(units: Tensor) -> Tensor:
    """`log(1 - tanh(u)^2)`, exact also where the tanh is 1 but for rounding."""
    return 2.0 * (math.log(2.0) - units - functional.softplus(-2.0 * units))


def _at_level(each_CA: Tensor, executed_C: Tensor, level: LogprobLevel) -> Tensor:
    if level == "token":
        return (each_CA * executed_C.unsqueeze(-1)).flatten(-2)
    if (
        level == "chunk" and executed_C.shape[-1] == 1
    ):  # the mask of the decision says whether it was executed
        return each_CA.sum(-1)
    each_C = each_CA.sum(-1) * executed_C
    return each_C if level == "action" else each_C.sum(-1, keepdim=True)
