"""The network: perceptrons from observations to the parameters of an action distribution and to a value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlinf_model_mlp_policy.pictures import PictureEncoder
from rlinf_model_mlp_policy.steady import steadily

if TYPE_CHECKING:
    from rlinf_model_mlp_policy.config import MLPPolicyConfig

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


class PolicyNetwork(nn.Module):
    """`[..., S]` states and `[..., H, W, 3]` pictures to `[..., outputs]` and `[...]` values.

    Features of pictures stand behind the state, and serve actions and values alike. `log_std`
    (`[outputs]`) exists for continuous actions only; where the state tells it, there are as many outputs
    again behind the means, which are added to its start. `value` exists only if it was asked for. The last
    layer of the actions starts near zero, so that a new policy prefers no action.
    """

    def __init__(
        self,
        states: int,
        pictures: Mapping[str, Sequence[int]],
        outputs: int,
        config: MLPPolicyConfig,
        *,
        continuous: bool,
        valued: bool,
    ) -> None:
        super().__init__()
        self.states = states
        sizes = [states + config.image_features * len(pictures), *config.hidden]
        told = 2 * outputs if continuous and config.std == "state" else outputs
        self.layers = nn.Sequential(*_hidden(sizes, config.activation), nn.Linear(sizes[-1], told))
        self.log_std: nn.Parameter | None = None
        if continuous and config.std == "free":
            self.log_std = nn.Parameter(torch.full((outputs,), config.init_log_std))
        self.pictures = nn.ModuleDict(
            {name: PictureEncoder(shape, config) for name, shape in sorted(pictures.items())}
        )
        self.value: nn.Sequential | None = None
        self.shares_layers = config.value_head == "shared"
        if valued:
            own = [] if self.shares_layers else _hidden(sizes, config.activation)
            self.value = nn.Sequential(*own, nn.Linear(sizes[-1], 1))

    def initialise(self, seed: int) -> None:
        """Orthogonal weights (Saxe et al. 2014) drawn from `seed`, biases 0; values come last, so that the
        policy is the same without them."""
        generator = torch.Generator().manual_seed(seed)
        last = {self.layers[-1]: 0.01}
        if self.value is not None:
            last[self.value[-1]] = 1.0
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(part.weight, last.get(part, math.sqrt(2.0)), generator=generator)
                nn.init.zeros_(part.bias)  # type: ignore[arg-type]

    def forward(
        self, observations: Mapping[str, Tensor], values: bool = False, steady: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Means (continuous) or logits (discrete), and values if they are asked for. `steady`: `[B]` rows to
        the same bits whatever is beside one, without values."""
        features = self._features(observations, steady)
        if steady:
            return steadily(self.layers, features), None
        leading = features.shape[:-1]
        features = features.flatten(0, -2)  # products of two matrices are the fast ones
        *before, last = self.layers
        hidden = features
        for layer in before:
            hidden = layer(hidden)
        outputs: Tensor = last(hidden)
        outputs = outputs.view(*leading, -1)
        if not values or self.value is None:
            return outputs, None
        return outputs, self.value(hidden if self.shares_layers else features).view(leading)

    def _features(self, observations: Mapping[str, Tensor], steady: bool) -> Tensor:
        parts = [observations["state"].float()] if self.states else []
        parts += [encoder(observations[f"images/{name}"], steady) for name, encoder in self.pictures.items()]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def _hidden(sizes: Sequence[int], activation: str) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), _ACTIVATIONS[activation]()]
    return layers
