"""What rlinf and verl do differently. The numbers are in `docs/crosscheck.md`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from crosscheck_batches import Batch
from crosscheck_examples import (
    FOUR,
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
from rlinf_algo_ppo.algorithm import PPO
from rlinf_algo_ppo.config import PPOConfig

from rlinf_core.rl.advantages import whiten
from rlinf_core.rl.aggregate import summed
from rlinf_core.rl.importance import Mode, truncated_importance
from rlinf_core.rl.kl import kl_values
from rlinf_core.rl.logprobs import entropy
from rlinf_core.rl.values import value_loss

NOTHING = replace(one(0.0, 1.0), mask_BT=torch.zeros(1, 1, dtype=torch.bool))
CRITIC = replace(
    example([[0.0, 0.0], [0.0]], old_values_BT=[[0.5, 0.0], [0.25]], reference_BT=[[-1.2, -1.2], [-2.0]]),
    rewards_B=torch.tensor([1.0, 0.0], dtype=torch.float64),
)
FIRST_TOKEN = example([[0.0, 0.0]], [[1.0, 0.0]])
DRIFTED = example([[0.0, 0.0]], rollout_BT=[[-3.0, -3.0]])
KL_ONLY = example([[0.5, -0.2]], [[0.0, 0.0]])
FAR, HELD = one(12.0, -1.0), one(-0.5, 1.0)
SINGLE = rewarded(0.5)
FAR_BELOW, ZERO = torch.tensor(-4.0), torch.zeros(())
LOGITS = torch.tensor([0.0, 0.0, -torch.inf])
ONES = torch.ones(1, 3, dtype=torch.float64)


def their_advantage(name: str, batch: Batch) -> Callable[[Peer], Number]:
    """Of the first row, by one of verl's estimators, in the precision of the rewards."""

    def found(verl: Peer) -> Number:
        number: Number = verl.outcome_advantages(name, batch, rewards_BT=batch.rewards_B[:, None])[0, 0]
        return number

    return found


def our_gae(row: int, step: int, **options: bool) -> Number:
    """An advantage, `gamma` 1 and `lambda` 1."""
    config = PPOConfig(gae_lambda=1.0, **options)
    return PPO(config).advantages(CRITIC.scored()).advantages_BT[row, step]


def their_gae(verl: Peer, row: int, step: int) -> Number:
    """The same of verl."""
    columns = CRITIC.outcome_BT(), CRITIC.old_values_BT, CRITIC.weights_BT
    number: Number = verl.core_algos.compute_gae_advantage_return(*columns, 1.0, 1.0)[0][row, step]
    return number


def our_kl_coefficient() -> Number:
    """After a step with a coefficient of 0.2, a target of 0.45 and a horizon of 10 rows."""
    algorithm = PPO(PPOConfig(kl_coef=0.2, kl_target=0.45, kl_horizon=10))
    algorithm.advantages(CRITIC.scored())
    return float(algorithm.state_dict()["kl_coef"])


def their_kl_coefficient(verl: Peer) -> Number:
    """The same of verl."""
    controller = verl.core_algos.AdaptiveKLController(0.2, 0.45, 10)
    verl.penalised_rewards(CRITIC, controller, "k1")
    return float(controller.value)


def our_norm() -> Number:
    """Two rows of a task whose longest response has 8 tokens."""
    batch = replace(GOOD_AND_BAD, longest=8)
    return value(ours(batch, loss_aggregation="seq-mean-token-sum-norm"), batch)


def loss(batch: Batch, measure: Measure = value, **options: Any) -> Callable[[Peer], Number]:
    """verl's policy loss, or something of it."""
    return lambda verl: measure(verl.policy_loss(batch, batch.advantages_BT, **options), batch)


def old_kl(name: str) -> Measure:
    """What is logged of the KL to the old policy."""
    return lambda each, batch: metric(each, batch, name)


def our_value_loss() -> Number:
    """A value of 2, once 0, that should be 2."""
    numbers = (torch.tensor(number) for number in (2.0, 0.0, 2.0))
    return value_loss(*numbers, clip=PPOConfig().value_clip, huber_delta=None).loss_BT


def weights(batch: Batch, mode: Mode = "truncate") -> torch.Tensor:
    """Ours, with a cap of 2."""
    return truncated_importance(batch.old_BT, batch.rollout_BT, batch.mask_BT, 2.0, "token", mode)


CASES: dict[str, Case] = {
    "equal rewards": Case(lambda: our_advantage(SEVEN), their_advantage("grpo", SEVEN)),
    "group of one": Case(lambda: our_advantage(SINGLE), their_advantage("grpo", SINGLE)),
    "group of one, leave-one-out": Case(
        lambda: our_advantage(SINGLE, RLOOConfig()), their_advantage("rloo", SINGLE)
    ),
    "advantages that are not whitened": Case(
        lambda: our_gae(0, 0, whiten=False), lambda verl: their_gae(verl, 0, 0)
    ),
    "advantages off the mask": Case(lambda: our_gae(1, 1), lambda verl: their_gae(verl, 1, 1)),
    "whitening of equal numbers": Case(
        lambda: whiten(ONES, ONES.bool())[0, 0],
        lambda verl: verl.functional.masked_whiten(ONES, ONES)[0, 0],
    ),
    "whitening of one number": Case(
        lambda: whiten(ONES[:, :1], ONES[:, :1].bool())[0, 0],
        lambda verl: verl.functional.masked_whiten(ONES[:, :1], ONES[:, :1])[0, 0],
    ),
    "KL that the coefficient follows": Case(our_kl_coefficient, their_kl_coefficient),
    "dual clip by default": Case(lambda: value(ours(FOUR), FOUR), loss(FOUR)),
    "KL to the old policy, as logged": Case(
        lambda: metric(ours(FOUR), FOUR, "approx_kl"), loss(FOUR, old_kl("ppo_kl"))
    ),
    "bound of a sequence ratio": Case(lambda: value(ours(FAR, SEQUENCE), FAR), loss(FAR, loss_mode="gspo")),
    "gradient of a sequence ratio, advantages by token": Case(
        lambda: slope(ours(FIRST_TOKEN, SEQUENCE), FIRST_TOKEN), loss(FIRST_TOKEN, slope, loss_mode="gspo")
    ),
    "lower bound of clipped weights": Case(
        lambda: value(ours(HELD, CISPOConfig()), HELD), loss(HELD, loss_mode="cispo")
    ),
    "no trained token at all": Case(
        lambda: summed(NOTHING.advantages_BT, NOTHING.mask_BT, "token-mean"),
        lambda verl: verl.core_algos.agg_loss(NOTHING.advantages_BT, NOTHING.weights_BT, "token-mean"),
    ),
    "constant of Dr. GRPO": Case(our_norm, loss(GOOD_AND_BAD, loss_agg_mode="seq-mean-token-sum-norm")),
    "k3 far from the reference": Case(
        lambda: kl_values(FAR_BELOW, ZERO, "k3"),
        lambda verl: verl.core_algos.kl_penalty(FAR_BELOW, ZERO, "k3"),
    ),
    "k1 in the loss": Case(
        lambda: value(ours(KL_ONLY, kl_coef=1.0, kl_estimator="k1"), KL_ONLY),
        lambda verl: value(
            verl.whole_loss(KL_ONLY, use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type="k1"), KL_ONLY
        ),
    ),
    "value clip by default": Case(our_value_loss, lambda verl: verl.default_value_loss(2.0, 0.0, 2.0)),
    "entropy of logits with a forbidden token": Case(
        lambda: entropy(LOGITS), lambda verl: verl.functional.entropy_from_logits(LOGITS)
    ),
    "rollout weights off the mask": Case(
        lambda: weights(GOOD_AND_BAD)[0, 1],
        lambda verl: verl.rollout_weights(GOOD_AND_BAD, "token", 2.0)[0, 1],
    ),
    "every rollout weight masked": Case(
        lambda: weights(DRIFTED, "mask").sum(),
        lambda verl: verl.rollout_weights(DRIFTED, "token", "0.5_2.0").sum(),
    ),
}
