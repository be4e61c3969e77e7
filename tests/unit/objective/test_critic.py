"""The loss of a critic, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlinf_core.api import LossTerms, PolicyOutputs, TrainBatch
from rlinf_core.errors import ConfigError
from rlinf_core.objective import CriticOptions
from rlinf_core.objective.critic import value_terms

MASK = torch.tensor([[True, True, False], [True, False, False]])
VALUES = torch.tensor([[0.2, 3.0, torch.nan], [1.0, torch.inf, 0.0]])
OLD = torch.tensor([[1.0, 1.0, torch.nan], [0.5, 9.0, torch.nan]])
RETURNS = torch.tensor([[0.0, 0.0, torch.inf], [2.0, 9.0, torch.nan]])


def batch(**columns: Any) -> TrainBatch:
    values: dict[str, Any] = {
        "inputs": {},
        "mask_BT": MASK,
        "advantages_BT": torch.zeros(2, 3),
        "rollout_logprobs_BT": torch.zeros(2, 3),
        "returns_BT": RETURNS,
        "values_BT": OLD,
    }
    return TrainBatch(**{**values, **columns})


def outputs(values_BT: torch.Tensor = VALUES) -> PolicyOutputs:
    return PolicyOutputs(torch.zeros(2, 3), values_BT=values_BT)


def means(terms: LossTerms) -> dict[str, float]:
    return {name: float(total) / float(count) for name, (total, count) in terms.metrics.items()}


def test_the_loss_is_half_the_squared_error_summed_over_decisions() -> None:
    terms = value_terms(outputs(), batch(), CriticOptions())
    assert terms.total.item() == pytest.approx((0.04 + 9 + 1) / 2)
    assert means(terms) == {
        "value_loss": pytest.approx((0.04 + 9 + 1) / 6),
        "value_clip_fraction": 0.0,
        "values": pytest.approx(4.2 / 3),
    }


def test_the_clip_counts_where_it_decides_the_loss() -> None:
    # 0.2 is held at 0.5, farther from 0 than it is: the clip decides. 3 is held at 1.5, nearer: it does
    # not. 1 is where it may be.
    terms = value_terms(outputs(), batch(), CriticOptions(value_clip=0.5))
    assert terms.total.item() == pytest.approx((0.25 + 9 + 1) / 2)
    assert means(terms)["value_clip_fraction"] == pytest.approx(1 / 3)


def test_the_huber_loss_is_linear_beyond_its_delta() -> None:
    terms = value_terms(outputs(), batch(), CriticOptions(value_loss="huber", huber_delta=1.5))
    assert terms.total.item() == pytest.approx(0.02 + 1.5 * (3 - 0.75) + 0.5)


def test_values_share_the_aggregation_of_the_policy() -> None:
    terms = value_terms(outputs(), batch(), CriticOptions(loss_aggregation="seq-mean-token-mean"))
    assert terms.total.item() == pytest.approx((0.02 + 4.5) / 2 + 0.5)
    assert means(terms)["value_loss"] == pytest.approx(terms.total.item() / 2)


def test_the_gradient_is_the_error_and_exactly_zero_off_the_mask() -> None:
    values_BT = VALUES.clone().requires_grad_()
    value_terms(outputs(values_BT), batch(), CriticOptions()).total.backward()
    assert values_BT.grad is not None
    torch.testing.assert_close(values_BT.grad, torch.tensor([[0.2, 3.0, 0.0], [-1.0, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        ((PolicyOutputs(torch.zeros(2, 3)), batch()), "values of the critic"),
        ((outputs(), batch(returns_BT=None)), "returns"),
        ((outputs(), batch(values_BT=None)), "values from before"),
    ],
)
def test_what_is_missing_is_named(made: tuple[PolicyOutputs, TrainBatch], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"algo.critic=head, but there are no {missing}"):
        value_terms(*made, CriticOptions())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 1.1}, "algo.gamma .*between 0 and 1"),
        ({"gae_lambda": -0.1}, "algo.gae_lambda .*between 0 and 1"),
        ({"value_coef": 0.0}, "algo.value_coef .*above 0"),
        ({"value_clip": 0.0}, "algo.value_clip .*above 0, or null"),
        ({"critic_warmup": -1}, "algo.critic_warmup .*0 or more"),
        ({"critic": "own", "value_coef": 1.0}, "algo.value_coef .*critic_optimizer.lr"),
        ({"huber_delta": 1.0}, "algo.huber_delta .*only value_loss=huber"),
    ],
)
def test_unusable_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CriticOptions(**options)
