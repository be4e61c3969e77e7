"""What rlinf and TRL do differently. The numbers are in `docs/crosscheck.md`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crosscheck_batches import Batch
from crosscheck_examples import (
    GOOD_AND_BAD,
    SEQUENCE,
    SEVEN,
    Case,
    Measure,
    Number,
    Peer,
    example,
    metric,
    one,
    our_advantage,
    ours,
    rewarded,
    slope,
    value,
)
from rlinf_algo_grpo.presets import CISPOConfig, RLOOConfig

REFERENCE = rewarded(1.0, 0.0, 1.0, 0.5)
CLOSE = rewarded(1e-4, 0.0, 0.0, 0.0)
EMPTY_ROW = example([[0.0], []])
CLIPPED_ROW = example([[0.5], [0.0, 0.0, 0.0]])
ENTROPIES = example([[0.0], [0.0] * 3], [[0.0], [0.0] * 3], entropy_BT=[[1.0], [0.2, 0.2, 0.2]])
PAIR = example([[0.05, 0.05]])
FAR_BELOW, OPPOSITE = one(-25.0, 0.0), example([[0.5, -0.5]], [[0.0, 0.0]])
FAR, RAISED = one(25.0, -1.0), one(0.5, 1.0)


def loss(batch: Batch, measure: Measure = value, **options: Any) -> Callable[[Peer], Number]:
    """TRL's GRPO loss, or something of it."""
    return lambda trl: measure(trl.grpo_loss(batch, batch.advantages_BT[:, 0], **options), batch)


def clipped(name: str) -> Measure:
    """What is logged of the clip."""
    return lambda each, batch: metric(each, batch, name)


def in_two(trl: Peer) -> Number:
    """Two micro-batches of one row each, accumulated."""
    parts = [example([[0.0]]), example([[0.0] * 3], [[-1.0] * 3])]
    chosen = {"loss_type": "bnpo", "current_gradient_accumulation_steps": 2}
    return sum(value(trl.grpo_loss(part, part.advantages_BT[:, 0], **chosen), part) for part in parts)


CASES: dict[str, Case] = {
    "epsilon beside the std": Case(
        lambda: our_advantage(REFERENCE), lambda trl: trl.grpo_advantages(REFERENCE)[0]
    ),
    "epsilon beside the std, close rewards": Case(
        lambda: our_advantage(CLOSE), lambda trl: trl.grpo_advantages(CLOSE)[0]
    ),
    "equal rewards": Case(lambda: our_advantage(SEVEN), lambda trl: trl.grpo_advantages(SEVEN)[0]),
    "bound of a ratio": Case(lambda: value(ours(FAR), FAR), loss(FAR)),
    "upper bound of clipped weights": Case(
        lambda: value(ours(RAISED, CISPOConfig(clip_ratio_high=0.28)), RAISED),
        loss(RAISED, loss_type="cispo", epsilon_high=0.28),
    ),
    "clip fraction of a sequence ratio": Case(
        lambda: metric(ours(CLIPPED_ROW, SEQUENCE), CLIPPED_ROW, "clip_fraction"),
        loss(CLIPPED_ROW, clipped("clip_ratio/region_mean"), importance_sampling_level="sequence"),
    ),
    "ratio of RLOO, off policy": Case(
        lambda: slope(ours(PAIR, RLOOConfig()), PAIR),
        lambda trl: slope(trl.rloo_loss(PAIR, PAIR.advantages_BT[:, 0], PAIR.old_BT), PAIR),
    ),
    "micro-batches of unequal length": Case(lambda: value(ours(GOOD_AND_BAD), GOOD_AND_BAD), in_two),
    "rows without a trained token": Case(
        lambda: value(ours(EMPTY_ROW, loss_aggregation="seq-mean-token-mean"), EMPTY_ROW),
        loss(EMPTY_ROW, loss_type="grpo"),
    ),
    "rows without a trained token, Dr. GRPO": Case(
        lambda: value(
            ours(EMPTY_ROW, loss_aggregation="seq-mean-token-sum-norm", max_tokens_norm=4), EMPTY_ROW
        ),
        loss(EMPTY_ROW, loss_type="dr_grpo", max_completion_length=4),
    ),
    "entropy bonus of a mean over rows": Case(
        lambda: value(ours(ENTROPIES, loss_aggregation="seq-mean-token-mean", entropy_coef=0.1), ENTROPIES),
        loss(ENTROPIES, loss_type="grpo", entropy_coef=0.1),
    ),
    "bound of k3": Case(lambda: value(ours(FAR_BELOW, kl_coef=1.0), FAR_BELOW), loss(FAR_BELOW, beta=1.0)),
    "k3 times the ratio, sequence level": Case(
        lambda: value(
            ours(OPPOSITE, kl_coef=1.0, kl_estimator="k3-ratio", importance_level="sequence"), OPPOSITE
        ),
        loss(OPPOSITE, beta=1.0, use_bias_correction_kl=True, importance_sampling_level="sequence"),
    ),
}
