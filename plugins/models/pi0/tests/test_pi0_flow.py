"""The noisy steps of the flow, on fields whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch
from rlinf_model_pi0.flow import Flow, Gaussian


def number(value: float) -> torch.Tensor:
    return torch.tensor([[[value]]])


def one(step: int) -> torch.Tensor:
    return torch.tensor([step])


def test_an_sde_step_has_the_mean_and_deviation_worked_out_by_hand() -> None:
    """Step 1 of 4 starts at t = 3/4: s^2 = 0.5^2 * 3/4 / (1/4) = 0.75, so s^2 / (2 t) = 0.5. From x = 2 with
    v = 1.2 the noise within x is 2 + 0.25 * 1.2 = 2.3 and the drift 1.2 + 0.5 * 2.3 = 2.35. A quarter of it
    leads to 2 - 0.5875 = 1.4125, with variance 0.75 / 4 = 0.1875."""
    found = Flow(4, 0.5).sde(number(2.0), number(1.2), one(1))
    assert float(found.mean_MCA) == pytest.approx(1.4125, abs=1e-6)
    assert float(found.std_MCA) ** 2 == pytest.approx(0.1875, abs=1e-6)


def test_the_first_step_takes_the_next_times_distance_from_the_noise() -> None:
    """At t = 1 of 4 steps: s^2 = 0.5^2 / (1/4) = 1, the noise is x = 2, the drift 1.2 + 0.5 * 2 = 2.2."""
    found = Flow(4, 0.5).sde(number(2.0), number(1.2), one(0))
    assert float(found.mean_MCA) == pytest.approx(2.0 - 2.2 / 4, abs=1e-6)
    assert float(found.std_MCA) == pytest.approx(0.5, abs=1e-6)


def test_a_single_step_is_finite() -> None:
    """s^2 = 0.5^2 / 1, the drift 1.2 + 0.125 * 2."""
    found = Flow(1, 0.5).sde(number(2.0), number(1.2), one(0))
    assert float(found.mean_MCA) == pytest.approx(2.0 - 1.45, abs=1e-6)
    assert float(found.std_MCA) == pytest.approx(0.5, abs=1e-6)


def test_log_probability_and_entropy_of_a_step_are_those_of_a_normal_number() -> None:
    """(1.0 - 1.4125)^2 / (2 * 0.1875) = 0.45375, ln sqrt(0.1875) = -0.836988, ln sqrt(2 pi) = 0.918939."""
    step = Gaussian(number(1.4125), number(math.sqrt(0.1875)))
    assert float(step.logprobs(number(1.0))) == pytest.approx(-0.45375 + 0.836988 - 0.918939, abs=1e-5)
    assert float(step.entropy()) == pytest.approx(-0.836988 + 0.5 + 0.918939, abs=1e-5)
    peer = torch.distributions.Normal(1.4125, math.sqrt(0.1875))
    assert float(step.logprobs(number(-0.3))) == pytest.approx(
        float(peer.log_prob(torch.tensor(-0.3))), abs=1e-5
    )


def test_a_learned_step_follows_the_ode_with_the_noise_it_is_given() -> None:
    found = Flow(4, 0.5).learned(number(2.0), number(1.2), number(0.1))
    assert float(found.mean_MCA) == pytest.approx(1.7, abs=1e-6)
    assert float(found.sample(number(-2.0))) == pytest.approx(1.5, abs=1e-6)


MEAN, SPREAD = 1.5, 0.4  # of the actions in the field below


def exact_velocity(state: torch.Tensor, time: float) -> torch.Tensor:
    """E[n - a | x] for noise n ~ N(0, 1), actions a ~ N(MEAN, SPREAD^2) and x = t n + (1 - t) a: jointly
    normal, so it is the mean of n - a plus cov(n - a, x) / var(x) times how far x is from its mean."""
    variance = time**2 + (1 - time) ** 2 * SPREAD**2
    covariance = time - (1 - time) * SPREAD**2
    return -MEAN + covariance / variance * (state - (1 - time) * MEAN)


def end(steps: int, level: float) -> tuple[float, float]:
    """Mean and deviation of where chains end, without sampling: the field is linear, so each step is
    x -> intercept + slope x + deviation * normal, which two probes find out."""
    flow = Flow(steps, level or 1.0)
    mean, variance = 0.0, 1.0
    probes = torch.tensor([0.0, 1.0], dtype=torch.float64).view(2, 1, 1)
    for step in range(steps):
        velocity = exact_velocity(probes, 1.0 - step / steps)
        led = flow.sde(probes, velocity, torch.full((2,), step))
        reached = led.mean_MCA if level else flow.ode(probes, velocity)
        intercept, slope = float(reached[0]), float(reached[1] - reached[0])
        mean = intercept + slope * mean
        variance = slope**2 * variance + (float(led.std_MCA[0]) ** 2 if level else 0.0)
    return mean, math.sqrt(variance)


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_with_small_steps_noise_keeps_the_distribution_of_the_actions(level: float) -> None:
    mean, deviation = end(4000, level)
    assert mean == pytest.approx(MEAN, abs=1e-3)
    assert deviation == pytest.approx(SPREAD, abs=1e-3)


def test_the_error_of_larger_steps_shrinks_with_them() -> None:
    gaps = [abs(end(steps, 1.0)[1] - SPREAD) for steps in (50, 200, 800)]
    assert gaps[0] > 2.5 * gaps[1] > 2.5**2 * gaps[2] > 0
