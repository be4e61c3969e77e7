"""The flow and its noisy steps: from noise at time 1 to actions at time 0, each step a Gaussian.

The flow of pi0 (Black et al. 2024) is x_t = t n + (1 - t) a of noise n and actions a, its velocity
v = E[n - a | x_t]. So E[n | x_t] = x_t + (1 - t) v, and the score of x_t is -E[n | x_t] / t. The SDE

    dx = (v + s^2 / (2 t) (x + (1 - t) v)) dt + s dw,   s = level sqrt(t / (1 - t))

run backwards has the marginals of the ODE dx = v dt (Liu et al. 2025, Flow-GRPO; Chen et al. 2025, pi_RL,
"Flow-SDE"). At t = 1, where s is infinite, 1 - t is taken as that of the next time.

Axes: M decisions, C actions of a chunk, A action dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Gaussian:
    """Where a denoising step leads: independent normal numbers. float32."""

    mean_MCA: Tensor
    std_MCA: Tensor  # broadcasts against the mean

    def sample(self, normal_MCA: Tensor) -> Tensor:
        """What standard normal numbers become."""
        return self.mean_MCA + self.std_MCA * normal_MCA

    def logprobs(self, reached_MCA: Tensor) -> Tensor:
        """`[M, C, A]` of what was reached."""
        z_MCA = (reached_MCA - self.mean_MCA) / self.std_MCA
        return -0.5 * z_MCA.square() - self.std_MCA.log() - _HALF_LOG_2PI

    def entropy(self) -> Tensor:
        """`[M, C, A]` in nats."""
        return (self.std_MCA.log() + (0.5 + _HALF_LOG_2PI)).expand_as(self.mean_MCA)


@dataclass(frozen=True)
class Flow:
    """`steps` equal steps; `level` scales the noise of the SDE."""

    steps: int
    level: float

    def time(self, step_M: Tensor) -> Tensor:
        """`[M]` at which a step starts."""
        return 1.0 - step_M.float() / self.steps

    def ode(self, state_MCA: Tensor, velocity_MCA: Tensor) -> Tensor:
        """One step of Euler's method, without noise."""
        return state_MCA - velocity_MCA / self.steps

    def sde(self, state_MCA: Tensor, velocity_MCA: Tensor, step_M: Tensor) -> Gaussian:
        """One step of Euler and Maruyama's method."""
        time_M11 = self.time(step_M)[:, None, None]
        left_M11 = torch.clamp(1.0 - time_M11, min=1.0 / self.steps)
        ratio_M11 = self.level**2 / left_M11  # s^2 / t
        noise_MCA = state_MCA + (1.0 - time_M11) * velocity_MCA
        drift_MCA = velocity_MCA + 0.5 * ratio_M11 * noise_MCA
        std_M11 = (ratio_M11 * time_M11 / self.steps).sqrt()
        return Gaussian(state_MCA - drift_MCA / self.steps, std_M11)

    def learned(self, state_MCA: Tensor, velocity_MCA: Tensor, std_MCA: Tensor) -> Gaussian:
        """A step of Euler's method with the noise that a head asks for (pi_RL, "Flow-Noise"; ReinFlow, Zhang
        et al. 2025)."""
        return Gaussian(self.ode(state_MCA, velocity_MCA), std_MCA)
