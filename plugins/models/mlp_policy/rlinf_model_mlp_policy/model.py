"""A perceptron policy for simulators that show states, pictures or both.

Axes: B rows, D decisions, K positions of a decision, T = D * K positions, N environments, S state size,
C actions of a chunk, A action dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.api import ActionSample, Collator, Model, PolicyOutputs, Space, Want
from rlinf_core.errors import ModelError
from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.distributions import Categorical, Gaussian, Squashed
from rlinf_model_mlp_policy.network import PolicyNetwork
from rlinf_model_mlp_policy.weights import load_weights, save_weights

if TYPE_CHECKING:
    from rlinf_core.api.capabilities import LogprobLevel
    from rlinf_core.types import Experience, Sampling, Trajectory

LOG_STD = (-10.0, 2.0)  # bounds of a logarithm that states tell


class MLPPolicy(Model):
    """Gaussian or squashed Gaussian for continuous actions, categorical for discrete ones."""

    config: MLPPolicyConfig

    def __init__(self, config: MLPPolicyConfig) -> None:
        super().__init__(config)
        self._states = 0
        self._pictures: dict[str, tuple[int, ...]] = {}  # camera -> [H, W, 3]
        self._action: Space | None = None
        self._valued = False
        self._level: LogprobLevel = "chunk"

    def bind(self, observation_space: Mapping[str, Space], action_space: Space) -> None:
        """Raises `ModelError` without a state or picture, for chunks of discrete actions, and for a tanh
        where actions have no bounds."""
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
        bounded = (
            action_space.n is None and math.isfinite(action_space.low) and math.isfinite(action_space.high)
        )
        if self.config.squash and not bounded:
            raise ModelError(
                "model.squash (mlp_policy): true: the simulator's actions are "
                + ("discrete" if action_space.n is not None else "without bounds")
                + "; a tanh needs a range"
            )
        self._states = 0 if state is None else math.prod(state.shape)
        self._pictures = {name.removeprefix("images/"): observation_space[name].shape for name in cameras}
        self._action = action_space

    def add_value_head(self) -> None:
        """Networks have the layers of `model.value_head` from now on. Raises `ModelError` for none."""
        if self.config.value_head == "none":
            raise ModelError("model.value_head (mlp_policy): none: the algorithm needs values; use separate")
        self._valued = True

    def value_head(self, module: nn.Module) -> nn.Module | None:
        """The layers that values alone come from."""
        return cast("PolicyNetwork", module).value

    def set_logprob_level(self, level: LogprobLevel) -> None:
        """Of chunks, actions or action dimensions; a discrete action is one position at every level."""
        self._level = level

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
                valued=self._valued,
            )
        network.initialise(seed)
        if self.config.path:
            load_weights(network, Path(self.config.path), self.config)
        return network

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """`state` `[B, D, S]`, `images/CAMERA` `[B, D, H, W, 3]`; `actions` `[B, D, C, A]` or `[B, D]`,
        `executed` `[B, D, C]`, `units` `[B, D, C, A]` before a tanh; `width` positions."""
        episodes = cast("Sequence[Trajectory]", rows)
        width = max(len(row.mask) for row in rows) if width is None else width
        decisions = -(-width // self._positions)
        inputs = {"actions": _pad([row.actions for row in episodes], decisions), "width": torch.tensor(width)}
        if self._states:
            states = [row.observations["state"].reshape(len(row.actions), -1) for row in episodes]
            inputs["state"] = _pad(states, decisions)
        for camera in self._pictures:
            name = f"images/{camera}"
            inputs[name] = _pad([row.observations[name] for row in episodes], decisions)
        if self._bound().n is None:
            inputs["executed"] = _pad([_executed(row) for row in episodes], decisions)
        if self.config.squash:
            inputs["units"] = _pad([row.latents for row in episodes], decisions)
        return inputs

    def collator(self, rows: Sequence[Experience]) -> Collator | None:
        """All rows padded once. None with pictures, of which memory holds no second copy."""
        if self._pictures:
            return None
        inputs = self.collate(rows)
        longest = int(inputs.pop("width"))

        def chosen(rows_B: Tensor, width: int) -> dict[str, Tensor]:
            found = {name: each.index_select(0, rows_B) for name, each in inputs.items()}
            if width < longest:
                decisions = -(-width // self._positions)
                found = {name: each[:, :decisions] for name, each in found.items()}
            return {**found, "width": torch.tensor(width)}

        return chosen

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """Actions that were not executed count neither in log-probabilities nor in entropies. All positions
        of a decision have its value."""
        _check_sampling(sampling)
        if "values" in want and self.value_head(module) is None:
            raise ModelError(
                "mlp_policy: values were asked for, but the module has no value head: call add_value_head() "
                "before module()"
            )
        policy, values_BD = self._evaluate(module, inputs, "values" in want)
        width = int(inputs["width"])
        logprobs_BDK, entropy_BDK = self._judge(policy, inputs, want)

        def in_row(each_BDK: Tensor) -> Tensor:
            each_BT = each_BDK.flatten(1)
            return each_BT if each_BT.shape[1] == width else each_BT[:, :width]

        values_BDK = values_BD
        if values_BD is not None and self._positions > 1:
            values_BDK = values_BD[..., None].expand_as(logprobs_BDK)
        return PolicyOutputs(
            in_row(logprobs_BDK),
            None if entropy_BDK is None else in_row(entropy_BDK),
            None if values_BDK is None else in_row(values_BDK),
        )

    @torch.no_grad()
    def act(
        self,
        module: nn.Module,
        observations: Mapping[str, Tensor],
        seeds: Sequence[int],
        greedy: bool = False,
    ) -> ActionSample:
        """Actions as drawn, without gradient: a simulator's bounds are not applied here. An action does not
        depend on those beside it, to the last bit."""
        if self._states:
            observations = {**observations, "state": observations["state"].flatten(1)}
        outputs, _ = module(observations, steady=True)
        policy = self._distribution(module, outputs.float())
        drawn = policy.draw(seeds, greedy)
        if isinstance(policy, Categorical):
            logprobs_N = policy.logprobs(drawn)
            logprobs_NK = None if self._level == "chunk" else logprobs_N[:, None]
            return ActionSample(drawn, logprobs_N, logprobs_NK=logprobs_NK)
        actions, latents = policy.actions(drawn), drawn if self.config.squash else None
        executed_NC = torch.ones(drawn.shape[:2], device=drawn.device)
        if self._level == "chunk":
            logprobs_NC = policy.logprobs_K(drawn, executed_NC, "action")
            return ActionSample(actions, logprobs_NC.sum(-1), logprobs_NC, latents=latents)
        each_NK = policy.logprobs_K(drawn, executed_NC, self._level)
        return ActionSample(actions, each_NK.sum(-1), logprobs_NK=each_NK, latents=latents)

    @property
    def chunk(self) -> int:
        """As set."""
        return self.config.chunk

    def label(self, actions: Tensor, seeds: Sequence[int]) -> ActionSample:
        """The actions themselves, or the units that a tanh makes them of."""
        zeros_N = torch.zeros(len(actions))
        zeros_NK = None if self._level == "chunk" else zeros_N[:, None].expand(-1, self._positions)
        latents = None
        if self.config.squash:
            shape = (self.config.chunk, math.prod(self._bound().shape))
            latents = self._gaussian(torch.zeros(shape), torch.zeros(shape)).drawn(actions)
        return ActionSample(actions, zeros_N, logprobs_NK=zeros_NK, latents=latents)

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """`model.safetensors` and `config.json`."""
        save_weights(state, path, self.config, self._states, self._pictures, self._bound())

    def _bound(self) -> Space:
        if self._action is None:
            raise ModelError("model mlp_policy takes its sizes from a simulator; name one with --simulator")
        return self._action

    @property
    def _positions(self) -> int:
        """Of a decision."""
        action, chunk = self._bound(), self.config.chunk
        if action.n is not None or self._level == "chunk":
            return 1
        return chunk if self._level == "action" else chunk * math.prod(action.shape)

    def _judge(
        self, policy: Gaussian | Categorical, inputs: Mapping[str, Tensor], want: frozenset[Want]
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities `[B, D, K]`, 0 where they are not wanted, and entropies."""
        actions = inputs["actions"]
        if not want & {"logprobs", "entropy"}:
            return torch.zeros((*actions.shape[:2], self._positions), device=actions.device), None
        if isinstance(policy, Categorical):
            logprobs_BD1 = policy.logprobs(actions)[..., None]
            return logprobs_BD1, policy.entropy()[..., None] if "entropy" in want else None
        executed_BDC, level = inputs["executed"], self._level
        entropy_BDK = policy.entropy_K(executed_BDC, level) if "entropy" in want else None
        drawn = inputs["units"] if self.config.squash else actions
        return policy.logprobs_K(drawn, executed_BDC, level), entropy_BDK

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
        if self.config.std == "free":
            return self._gaussian(
                outputs.unflatten(-1, shape), cast("Tensor", module.log_std).float().view(shape)
            )
        means, told = outputs.chunk(2, dim=-1)
        log_std = (self.config.init_log_std + told).clamp(*LOG_STD)
        return self._gaussian(means.unflatten(-1, shape), log_std.unflatten(-1, shape))

    def _gaussian(self, means_CA: Tensor, log_std_CA: Tensor) -> Gaussian:
        action = self._bound()
        bounded = math.isfinite(action.low) and math.isfinite(action.high)
        return (Squashed if self.config.squash else Gaussian)(
            means_CA,
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
