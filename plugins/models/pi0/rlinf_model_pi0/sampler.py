"""Draws chains of denoising steps, and judges those that were drawn.

Axes: M decisions, N environments, K noisy steps, C actions of a chunk, A action dimensions, S state size,
E expert's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.rl.noise import normals, uniforms
from rlinf_model_pi0 import heads, network
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.flow import Flow, Gaussian
from rlinf_model_pi0.matching import Matching

_OTHER = 0x9E3779B97F4A7C15  # seeds of the choice of a step are the decisions' plus this


@dataclass(frozen=True)
class Seen:
    """What M decisions look at: pictures and prompt as the expert sees them, and the state."""

    before: network.Prefix
    state_MS: Tensor


@dataclass(frozen=True)
class Chain:
    """The noisy steps of M decisions, one after the other: what each led from and to."""

    first_M: Tensor  # int64; number of the first one
    states_MKCA: Tensor  # float32, K + 1 of them

    def packed(self) -> Tensor:
        """One row of numbers for each decision."""
        return torch.cat([self.first_M.float()[:, None], self.states_MKCA.flatten(1)], dim=1)

    @classmethod
    def unpacked(cls, latents: Tensor, chunk: int, dimensions: int) -> Chain:
        """What `packed` gave."""
        states_MKCA = latents[:, 1:].view(len(latents), -1, chunk, dimensions)
        return cls(latents[:, 0].long(), states_MKCA)


@dataclass(frozen=True)
class Drawn:
    """Actions in the network's units, with the log-probability of every number of their chain, summed over
    its noisy steps."""

    actions_NCA: Tensor
    logprobs_NCA: Tensor
    chain: Chain


@dataclass(frozen=True)
class Judged:
    """Sums over the noisy steps of each chain, and the expert's view of the observation."""

    logprobs_MCA: Tensor
    entropy_MCA: Tensor
    hidden_ME: Tensor


@dataclass(frozen=True)
class Sampler:
    """The flow of one module."""

    module: nn.Module
    config: Pi0Config
    flow: Flow
    chunk: int  # that the network predicts
    dimensions: int  # of an action, padded

    def draw(self, seen: Seen, seeds: Sequence[int], greedy: bool) -> Drawn:
        """Denoise; row i from `seeds[i]`. Greedy follows the ODE from the middle of the noise."""
        state_NCA, noise_NKCA = self._noise(seeds, seen.state_MS.device)
        if greedy:
            state_NCA = torch.zeros_like(state_NCA)
        chosen_N = self._chosen(seeds, state_NCA.device)
        states, total_NCA = [state_NCA], torch.zeros_like(state_NCA)
        for step in range(self.flow.steps):
            step_N = torch.full((len(seeds),), step, device=state_NCA.device)
            reached, velocity_NCA, _ = self._step(seen, state_NCA, step_N)
            noisy_N = torch.ones_like(step_N, dtype=torch.bool) if chosen_N is None else chosen_N == step
            quiet_NCA = self.flow.ode(state_NCA, velocity_NCA)
            drawn_NCA = quiet_NCA if greedy else reached.sample(noise_NKCA[:, step])
            state_NCA = torch.where(noisy_N[:, None, None], drawn_NCA, quiet_NCA)
            total_NCA = total_NCA + reached.logprobs(state_NCA) * noisy_N[:, None, None]
            states.append(state_NCA)
        return Drawn(state_NCA, total_NCA, _chain(torch.stack(states, dim=1), chosen_N))

    def judge(self, seen: Seen, chain: Chain) -> Judged:
        """All noisy steps in one pass."""
        steps = chain.states_MKCA.shape[1] - 1
        repeated = Seen(seen.before.repeated(steps), seen.state_MS.repeat_interleave(steps, 0))
        from_MCA, to_MCA = (
            part.flatten(0, 1) for part in (chain.states_MKCA[:, :-1], chain.states_MKCA[:, 1:])
        )
        step_M = chain.first_M[:, None] + torch.arange(steps, device=chain.first_M.device)
        reached, _, hidden_ME = self._step(repeated, from_MCA, step_M.flatten())

        def summed(each_MCA: Tensor) -> Tensor:
            return each_MCA.view(-1, steps, *each_MCA.shape[1:]).sum(1)

        first_ME = hidden_ME[::steps]
        return Judged(summed(reached.logprobs(to_MCA)), summed(reached.entropy()), first_ME)

    def match(self, seen: Seen, wanted: Matching) -> Judged:
        """Minus the squared errors of velocities at the places of demonstrations; entropies are 0."""
        base = heads.base_of(self.module)
        hidden_MCE, view_ME = network.actions(
            base, seen.before, seen.state_MS, wanted.state_MCA, wanted.time_M
        )
        missed_MCA = network.velocity(base, hidden_MCE) - wanted.wanted_MCA
        return Judged(-missed_MCA.square(), torch.zeros_like(missed_MCA), view_ME)

    def look(self, seen: Seen) -> Tensor:
        """`[M, E]` the view of the observation, whatever is drawn."""
        return network.view(heads.base_of(self.module), seen.before, seen.state_MS)

    def _step(self, seen: Seen, state_MCA: Tensor, step_M: Tensor) -> tuple[Gaussian, Tensor, Tensor]:
        """Where a noisy step leads, the velocity, and the view of the observation."""
        base = heads.base_of(self.module)
        time_M = self.flow.time(step_M)
        hidden_MCE, view_ME = network.actions(base, seen.before, seen.state_MS, state_MCA, time_M)
        velocity_MCA = network.velocity(base, hidden_MCE)
        if self.config.noise == "sde":
            return self.flow.sde(state_MCA, velocity_MCA, step_M), velocity_MCA, view_ME
        std_MCA = heads.deviations(self.module, hidden_MCE, self.config.noise_bounds)
        return self.flow.learned(state_MCA, velocity_MCA, std_MCA), velocity_MCA, view_ME

    def _noise(self, seeds: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Where the flow starts `[N, C, A]`, and the noise of every step `[N, steps, C, A]`."""
        shape = (self.flow.steps + 1, self.chunk, self.dimensions)
        drawn = normals(seeds, int(np.prod(shape))).astype(np.float32)
        noise = torch.from_numpy(drawn).to(device).view(-1, *shape)
        return noise[:, 0], noise[:, 1:]

    def _chosen(self, seeds: Sequence[int], device: torch.device) -> Tensor | None:
        """`[N]` the one noisy step; None = all are."""
        if self.config.noisy_steps == "all":
            return None
        drawn_N = uniforms([int(seed) + _OTHER for seed in seeds], 1)[:, 0]
        return torch.from_numpy((drawn_N * self.flow.steps).astype(np.int64)).to(device)


def _chain(states_NKCA: Tensor, chosen_N: Tensor | None) -> Chain:
    if chosen_N is None:
        return Chain(torch.zeros(len(states_NKCA), dtype=torch.int64, device=states_NKCA.device), states_NKCA)
    rows = torch.arange(len(states_NKCA), device=states_NKCA.device)
    both = states_NKCA[rows, chosen_N], states_NKCA[rows, chosen_N + 1]
    return Chain(chosen_N, torch.stack(both, dim=1))
