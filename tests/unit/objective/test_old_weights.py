"""The loss of rows that older weights made, in three variants, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from rlinf_core.api import PolicyOutputs, TrainBatch
from rlinf_core.objective.options import PolicyOptions
from rlinf_core.objective.policy import policy_terms

# Probabilities of three decisions: of the weights that made them, at the start of the step, and now.
BEHAVIOUR = [0.2, 0.5, 0.4]
PROXIMAL = [0.4, 0.4, 0.1]
PRESENT = [0.6, 0.4, 0.15]
ADVANTAGES = [1.0, -2.0, -1.0]


@dataclass(frozen=True)
class Options(PolicyOptions):
    algorithm = "by hand"


def loss_and_gradient(options: PolicyOptions, old: list[float]) -> tuple[float, list[float]]:
    """The summed loss, and its derivative by each log-probability."""
    logprobs_BT = torch.tensor([PRESENT]).log().requires_grad_()
    batch = TrainBatch(
        inputs={},
        mask_BT=torch.ones(1, 3, dtype=torch.bool),
        advantages_BT=torch.tensor([ADVANTAGES]),
        rollout_logprobs_BT=torch.tensor([BEHAVIOUR]).log(),
        old_logprobs_BT=torch.tensor([old]).log(),
    )
    total = policy_terms(PolicyOutputs(logprobs_BT), batch, options).total
    total.backward()
    assert logprobs_BT.grad is not None
    return float(total.detach()), logprobs_BT.grad[0].tolist()


def test_without_more_the_clip_is_around_the_policy_that_made_the_rows() -> None:
    """Ratios 3, 0.8, 0.375: the first is clipped at 1.2, the third at 0.8, where no gradient is left."""
    loss, gradient = loss_and_gradient(Options(), BEHAVIOUR)
    assert loss == pytest.approx(-1.2 + 1.6 + 0.8)
    assert gradient == pytest.approx([0.0, 1.6, 0.0])


def test_decoupled_the_clip_is_around_the_step_and_the_weight_is_that_of_the_step() -> None:
    """Ratios 1.5, 1, 1.5; weights 2, 0.8, 0.25: -2 * 1.2 + 0.8 * 2 + 0.25 * 1.5."""
    loss, gradient = loss_and_gradient(Options(decoupled=True), PROXIMAL)
    assert loss == pytest.approx(-2.4 + 1.6 + 0.375)
    assert gradient == pytest.approx([0.0, 1.6, 0.375])


def test_a_cap_bounds_the_weight_alone() -> None:
    """The weight of the first becomes 1.5."""
    for options in (Options(decoupled=True, importance_cap=1.5), Options(importance_cap=1.5)):
        loss, gradient = loss_and_gradient(options, PROXIMAL)
        assert loss == pytest.approx(-1.8 + 1.6 + 0.375)
        assert gradient == pytest.approx([0.0, 1.6, 0.375])


def test_a_weight_of_whole_rows_is_a_product() -> None:
    """2 * 0.8 * 0.25 = 0.4 for every decision."""
    loss, _ = loss_and_gradient(Options(decoupled=True, importance_cap_level="sequence"), PROXIMAL)
    assert loss == pytest.approx(0.4 * (-1.2 + 2.0 + 1.5))
    assert math.prod(PROXIMAL) / math.prod(BEHAVIOUR) == pytest.approx(0.4)


def test_options_that_weigh_ask_for_log_probabilities_of_the_step() -> None:
    assert not Options().needs().recompute_old
    assert Options(decoupled=True).needs().recompute_old
    assert Options(importance_cap=2.0).needs().recompute_old
    assert Options().needs().off_policy
