"""The named relatives of GRPO: advantages and gradients against the formulas of their papers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.api import PolicyOutputs, ScoredBatch, TrainBatch
from rlinf_core.errors import ConfigError
from rlinf_core.plugins import plugins

LENGTHS = [5, 3, 4, 2, 5, 5, 1, 3]
LONGEST = 6  # responses may have
MASK = torch.arange(5)[None] < torch.tensor(LENGTHS)[:, None]
ADVANTAGES = [0.8, -1.3, 0.7, -0.2, 1.1, -0.6, 0.5, -0.9]


def algorithm_of(name: str) -> Any:  # Any: the plugin's class, loaded as a run does
    spec = plugins().get("algorithms", name)
    return spec.load()(spec.config())


def train_batch(spread: float) -> tuple[torch.Tensor, TrainBatch]:
    generator = torch.Generator().manual_seed(4)
    old_BT = -torch.rand(8, 5, generator=generator) - 0.1
    batch = TrainBatch(
        inputs={},
        mask_BT=MASK,
        advantages_BT=torch.tensor(ADVANTAGES)[:, None] * MASK,
        rollout_logprobs_BT=old_BT,
        old_logprobs_BT=old_BT,
        max_length=LONGEST,
    )
    return old_BT + spread * torch.randn(8, 5, generator=generator), batch


def expected_gradient(name: str, log_ratios: list[np.ndarray]) -> np.ndarray:
    """Row by row, of the mean loss with respect to each log-probability."""
    found = np.zeros((8, 5))
    for b, logs in enumerate(log_ratios):
        advantage, length = ADVANTAGES[b], LENGTHS[b]
        whole = math.exp(logs.mean())
        for t in range(length):
            ratio = math.exp(logs[t])
            found[b, t] = {
                # -min(r, 5) A over all tokens, whatever the clip of GRPO would say
                "cispo": -min(ratio, 5.0) * advantage / sum(LENGTHS),
                # s A, and ds/dlogp = s / length; each response weighs 1/8
                "gspo": -within(whole, advantage, 3e-4, 4e-4) * advantage / length / 8,
                # a sum over tokens with a constant norm
                "dr_grpo": -within(ratio, advantage, 0.2, 0.2) * advantage / LONGEST / 8,
                # s A for the sum of the tokens' log-probabilities
                "rloo": -within(whole, advantage, 0.2, 0.2) * advantage / 8,
                "remax": -within(ratio, advantage, 0.2, 0.2) * advantage / 8,
            }[name]
    return found


def within(ratio: float, advantage: float, low: float, high: float) -> float:
    """The ratio, or 0 where PPO's clip takes the gradient away."""
    if (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 1 - low):
        return 0.0
    return ratio


@pytest.mark.parametrize(
    ("name", "spread"), [("cispo", 1.5), ("gspo", 1e-3), ("dr_grpo", 0.3), ("rloo", 0.6), ("remax", 0.3)]
)
def test_the_gradient_is_that_of_the_paper(name: str, spread: float) -> None:
    algorithm = algorithm_of(name)
    new_BT, batch = train_batch(spread)
    assert batch.old_logprobs_BT is not None
    log_ratios = [(new_BT - batch.old_logprobs_BT)[b, :n].double().numpy() for b, n in enumerate(LENGTHS)]
    leaf = new_BT.requires_grad_()
    terms = algorithm.loss(PolicyOutputs(leaf), batch)
    (terms.total / algorithm.denominator(MASK)).backward()
    expected = torch.tensor(expected_gradient(name, log_ratios))
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.double(), expected, rtol=2e-4, atol=1e-7)
    low, high = (float(terms.metrics[f"clip_fraction_{side}"][0]) for side in ("low", "high"))
    assert high > 0  # the case has tokens that are clipped on both sides
    assert (low > 0) == (name != "cispo")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [0.783348, -1.305580, 0.783348, -0.261116]),
        ("dr_grpo", [0.375, -0.625, 0.375, -0.125]),
        ("gspo", [0.783348, -1.305580, 0.783348, -0.261116]),
        ("rloo", [0.5, -0.833333, 0.5, -0.166667]),
        ("cispo", [0.783348, -1.305580, 0.783348, -0.261116]),
        ("remax", [0.75, -0.25, 0.75, 0.25]),  # the greedy response got .25
    ],
)
def test_the_advantages_are_the_reference_numbers(name: str, expected: list[float]) -> None:
    algorithm = algorithm_of(name)
    batch = ScoredBatch(
        rewards_B=torch.tensor([1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]),
        groups_B=torch.tensor([0] * 4 + [1] * 4),
        mask_BT=MASK,
        logprobs_BT=torch.zeros(8, 5),
        truncated_B=torch.zeros(8, dtype=torch.bool),
        baselines_B=torch.tensor([0.25] * 4 + [1.0] * 4),
    )
    wanted = torch.tensor(expected + [0.0] * 4)[:, None] * MASK
    torch.testing.assert_close(algorithm.advantages(batch).advantages_BT, wanted, atol=1e-6, rtol=0)


def test_clips_of_whole_responses_are_told_apart_by_the_ratio_of_the_response() -> None:
    """Ratios e^.3 and e^-.1: the geometric mean e^.1 is above 1.0004, so all of it is clipped above."""
    batch = TrainBatch(
        inputs={},
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        advantages_BT=torch.ones(1, 2),
        rollout_logprobs_BT=torch.zeros(1, 2),
        old_logprobs_BT=torch.zeros(1, 2),
    )
    metrics = algorithm_of("gspo").loss(PolicyOutputs(torch.tensor([[0.3, -0.1]])), batch).metrics
    means = {name: float(total) / float(count) for name, (total, count) in metrics.items()}
    assert (means["clip_fraction_high"], means["clip_fraction_low"]) == (1.0, 0.0)
    assert means["ratio"] == pytest.approx(math.exp(0.1), rel=1e-6)


def test_needs_of_the_names_differ_where_the_algorithms_do() -> None:
    needs = {name: algorithm_of(name).needs for name in ("dr_grpo", "gspo", "rloo", "cispo", "remax")}
    assert [name for name, each in needs.items() if each.length_limit] == ["dr_grpo"]
    assert [name for name, each in needs.items() if each.greedy_baseline] == ["remax"]
    assert {name: each.group_size for name, each in needs.items()} == {
        "dr_grpo": 8,
        "gspo": 8,
        "rloo": 8,
        "cispo": 8,
        "remax": 1,
    }


def test_errors_name_the_algorithm_that_was_asked_for() -> None:
    spec = plugins().get("algorithms", "gspo")
    with pytest.raises(ConfigError, match=r"algo.group_size \(gspo\)"):
        spec.config(group_size=1)
