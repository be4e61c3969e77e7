"""A perceptron policy for simulators that show states, pictures or both.

Axes: B rows, T decision steps, N environments, S state size, C actions of a chunk, A action dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.api import ActionSample, Model, PolicyOutputs, Space, Want
from rlinf_core.errors import ModelError
from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.distributions import Categorical, Gaussian
from rlinf_model_mlp_policy.network import PolicyNetwork
from rlinf_model_mlp_policy.weights import load_weights, save_weights

if TYPE_CHECKING:
    from rlinf_core.types import Experience, Sampling, Trajectory


class MLPPolicy(Model):
    """Gaussian (state-independent log-std) for continuous actions, categorical for discrete ones."""

    config: MLPPolicyConfig

    def __init__(self, config: MLPPolicyConfig) -> None:
        super().__init__(config)
        self._states = 0
        self._pictures: dict[str, tuple[int, ...]] = {}  # camera -> [H, W, 3]
        self._action: Space | None = None

    def bind(self, observation_space: Mapping[str, Space], action_space: Space) -> None:
        """Raises `ModelError` without a state or picture, or for chunks of discrete actions."""
        state = observation_space.get("state")
        cameras = [name for name in observation_space if name.startswith("images/")]
        if state is None and not cameras:
            offered = ", ".join(observation_space) or "nothing"
            raise ModelError(
                f"model mlp_policy needs a 'state' or 'images/CAMERA' observation; the simulator offers "
                f"{offered}"
            )
        if action_space.n is not None and self.config.chunk != 1:
            raise ModelError(
                f"model.chunk (mlp_policy): {self.config.chunk}: the simulator's actions are discrete; use 1"
            )
        self._states = 0 if state is None else math.prod(state.shape)
        self._pictures = {name.removeprefix("images/"): observation_space[name].shape for name in cameras}
        self._action = action_space

    def module(self, seed: int = 0) -> nn.Module:
        """A new network drawn from `seed`, or the one in `path`."""
        action = self._bound()
        continuous = action.n is None
        with torch.random.fork_rng(devices=[]):  # layers draw their first weights from the global generator
            network = PolicyNetwork(
                self._states,
                self._pictures,
                self.config.chunk * math.prod(action.shape) if continuous else cast("int", action.n),
                self.config,
                continuous=continuous,
            )
        network.initialise(seed)
        if self.config.path:
            load_weights(network, Path(self.config.path))
        return network

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """`state` `[B, T, S]`, `images/CAMERA` `[B, T, H, W, 3]`; `actions` `[B, T, C, A]` or `[B, T]`,
        `executed` `[B, T, C]`."""
        episodes = cast("Sequence[Trajectory]", rows)
        width = max(len(row.mask) for row in rows) if width is None else width
        inputs = {"actions": _pad([row.actions for row in episodes], width)}
        if self._states:
            states = [row.observations["state"].reshape(len(row.mask), -1) for row in episodes]
            inputs["state"] = _pad(states, width)
        for camera in self._pictures:
            name = f"images/{camera}"
            inputs[name] = _pad([row.observations[name] for row in episodes], width)
        if self._bound().n is None:
            inputs["executed"] = _pad([_executed(row) for row in episodes], width)
        return inputs

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """A decision's log-probability is the sum over the executed actions of its chunk."""
        _check_sampling(sampling)
        if "values" in want and self.config.value_head == "none":
            raise ModelError("model.value_head (mlp_policy): none: the algorithm needs values; use separate")
        policy, values_BT = self._evaluate(module, inputs, "values" in want)
        if isinstance(policy, Categorical):
            entropy_BT = policy.entropy() if "entropy" in want else None
            return PolicyOutputs(policy.logprobs(inputs["actions"]), entropy_BT, values_BT)
        executed_BTC = inputs["executed"]
        logprobs_BT = (policy.logprobs_C(inputs["actions"]) * executed_BTC).sum(-1)
        entropy_BT = (policy.entropy_C() * executed_BTC).sum(-1) if "entropy" in want else None
        return PolicyOutputs(logprobs_BT, entropy_BT, values_BT)

    @torch.no_grad()
    def act(
        self,
        module: nn.Module,
        observations: Mapping[str, Tensor],
        seeds: Sequence[int],
        greedy: bool = False,
    ) -> ActionSample:
        """Actions as drawn, without gradient: a simulator's bounds are not applied here."""
        if self._states:
            observations = {**observations, "state": observations["state"].flatten(1)}
        policy, values_N = self._evaluate(module, observations, self.config.value_head != "none")
        actions = policy.sample(seeds, greedy)
        if isinstance(policy, Categorical):
            return ActionSample(actions, policy.logprobs(actions), values_N)
        logprobs_NC = policy.logprobs_C(actions)
        return ActionSample(actions, logprobs_NC.sum(-1), values_N, logprobs_NC)

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """`model.safetensors` and `config.json`."""
        save_weights(state, path, self.config, self._states, self._pictures, self._bound())

    def _bound(self) -> Space:
        if self._action is None:
            raise ModelError("model mlp_policy takes its sizes from a simulator; name one with --simulator")
        return self._action

    def _evaluate(
        self, module: nn.Module, observations: Mapping[str, Tensor], values: bool
    ) -> tuple[Gaussian | Categorical, Tensor | None]:
        outputs, found = module(observations, values)
        return self._distribution(module, outputs.float()), None if found is None else found.float()

    def _distribution(self, module: nn.Module, outputs: Tensor) -> Gaussian | Categorical:
        action = self._bound()
        if action.n is not None:
            return Categorical(outputs)
        shape = (self.config.chunk, math.prod(action.shape))
        log_std_CA = cast("Tensor", module.log_std).float().view(shape)
        bounded = math.isfinite(action.low) and math.isfinite(action.high)
        return Gaussian(
            outputs.unflatten(-1, shape),
            log_std_CA,
            centre=(action.high + action.low) / 2 if bounded else 0.0,
            half_range=(action.high - action.low) / 2 if bounded else 1.0,
        )


def _executed(row: Trajectory) -> Any:  # Any: a numpy array
    return np.ones(row.actions.shape[:2], dtype=bool) if row.executed is None else row.executed


def _pad(columns: Sequence[Any], width: int) -> Tensor:  # Any: numpy arrays of one dtype
    first = columns[0]
    padded = np.zeros((len(columns), width, *first.shape[1:]), dtype=first.dtype)
    for i, column in enumerate(columns):
        padded[i, : len(column)] = column
    return torch.from_numpy(padded)


def _check_sampling(sampling: Sampling | None) -> None:
    if sampling is not None and (sampling.temperature, sampling.top_p, sampling.top_k) != (1.0, 1.0, 0):
        raise ModelError(
            "model mlp_policy draws actions as its distribution says; leave sampling.temperature at 1, "
            "sampling.top_p at 1 and sampling.top_k at 0"
        )
