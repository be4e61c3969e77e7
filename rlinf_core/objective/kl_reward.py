"""Rewards of decisions, with the KL to the reference in them, and its coefficient.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_core.errors import ConfigError
from rlinf_core.rl.advantages import on_last_decision
from rlinf_core.rl.kl import kl_values

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.algorithm import ScoredBatch
    from rlinf_core.objective.kl_options import RewardKLOptions
    from rlinf_core.rl.kl import ValueEstimator

Metrics = dict[str, float | tuple[float, float]]

ADAPTIVE_STEP = 0.2  # an adaptive coefficient moves by at most this share over `kl_horizon` rows


class KLCoefficient:
    """The weight of the KL: fixed, or adapted to a target from step to step (Ziegler et al. 2019).

        coefficient *= 1 + clip(KL / target - 1, -0.2, 0.2) * rows / horizon

    The KL of a step moves the coefficient of the next one. `value` is that of the present step.
    """

    def __init__(self, start: float, target: float | None = None, horizon: int = 10_000) -> None:
        self.value = start
        self._next = start
        self._target = target
        self._horizon = horizon

    def begin_step(self, kl: float, rows: int) -> float:
        """This step's coefficient, given the mean KL of a decision and the number of its rows."""
        self.value = self._next
        if self._target is not None:
            error = max(-ADAPTIVE_STEP, min(ADAPTIVE_STEP, kl / self._target - 1.0))
            self._next = self.value * (1.0 + error * rows / self._horizon)
        return self.value

    def state_dict(self) -> dict[str, Any]:  # Any: plain numbers
        """The next step's coefficient, for checkpoints; nothing of a fixed one."""
        return {} if self._target is None else {"kl_coef": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.value = self._next = state.get("kl_coef", self._next)


def token_rewards(batch: ScoredBatch, coef: float = 0.0, estimator: ValueEstimator = "k1") -> Tensor:
    """`[B, T]` rewards of decisions, less `coef` times the KL of each to the reference; 0 off the mask.

    They are the task's rewards of steps where it gives them; else each row's outcome, paid at its last
    decision under the mask.
    """
    if batch.step_rewards_BT is None:
        rewards_BT = on_last_decision(batch.rewards_B, batch.mask_BT)
    else:
        rewards_BT = batch.step_rewards_BT.float().masked_fill(~batch.mask_BT, 0.0)
    return rewards_BT - coef * reference_kl(batch, estimator) if coef else rewards_BT


def reference_kl(batch: ScoredBatch, estimator: ValueEstimator = "k1") -> Tensor:
    """`[B, T]` estimated KL of the policy that made the rows to the reference; 0 off the mask."""
    if batch.reference_logprobs_BT is None:
        raise ConfigError("algo.kl_coef is set, but the batch has no reference log-probabilities")
    off_BT = ~batch.mask_BT
    logprobs_BT = batch.logprobs_BT.masked_fill(off_BT, 0.0)
    return kl_values(logprobs_BT, batch.reference_logprobs_BT.masked_fill(off_BT, 0.0), estimator)


def penalised_rewards(
    batch: ScoredBatch, coefficient: KLCoefficient, options: RewardKLOptions
) -> tuple[Tensor, Metrics]:
    """`token_rewards` as the options say, with this step's coefficient, which follows the batch's KL.

    Call it once a step, with the whole step.
    """
    if options.kl_coef == 0.0:
        return token_rewards(batch), {}
    estimator = options.kl_reward_estimator
    total, count = float(reference_kl(batch, estimator).sum()), float(batch.mask_BT.sum())
    coef = coefficient.begin_step(total / max(count, 1.0), int(batch.mask_BT.any(-1).sum()))
    rewards_BT = token_rewards(batch, coef if options.kl_in_reward else 0.0, estimator)
    metrics: Metrics = {"kl_coef": coef}
    if not options.kl_in_loss:
        metrics["kl"] = (total, count)
    return rewards_BT, metrics
