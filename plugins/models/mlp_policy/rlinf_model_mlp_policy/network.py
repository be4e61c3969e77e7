"""The network: a perceptron from states to the parameters of an action distribution."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


class PolicyNetwork(nn.Module):
    """`[..., S] -> [..., outputs]`; `log_std` (`[outputs]`) exists for continuous actions only.

    The last layer starts near zero, so that a new policy prefers no action.
    """

    def __init__(
        self, states: int, outputs: int, hidden: tuple[int, ...], activation: str, init_log_std: float | None
    ) -> None:
        super().__init__()
        sizes = [states, *hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), _ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
        self.log_std: nn.Parameter | None = None
        if init_log_std is not None:
            self.log_std = nn.Parameter(torch.full((outputs,), init_log_std))

    def initialise(self, seed: int) -> None:
        """Orthogonal weights (Saxe et al. 2014) drawn from `seed`, biases 0."""
        generator = torch.Generator().manual_seed(seed)
        linear = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        for layer in linear:
            gain = 0.01 if layer is linear[-1] else math.sqrt(2.0)
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Means (continuous) or logits (discrete)."""
        outputs: Tensor = self.layers(states)
        return outputs
