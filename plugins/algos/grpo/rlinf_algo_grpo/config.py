"""Options of GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class GRPOConfig:
    """Defaults: GRPO with a token-mean loss, no KL term, and on-policy log-probabilities."""

    group_size: int = 8  # responses per prompt, or episodes per initial state
    clip_ratio: float = 0.2  # the policy ratio is clipped at 1 - clip_ratio
    clip_ratio_high: float | None = None  # and at 1 + clip_ratio_high; None = clip_ratio
    dual_clip: float | None = None  # bounds the loss of bad tokens at dual_clip * |advantage|; None = off
    scale_by_std: bool = True  # divide advantages by the group's standard deviation
    baseline: Literal["group", "leave-one-out"] = "group"  # mean of the group, or of the others
    loss_aggregation: Literal[
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
    ] = "token-mean"  # how losses of tokens become one number
    max_tokens_norm: int = 0  # the constant of seq-mean-token-sum-norm; usually sampling.max_new_tokens
    importance_level: Literal["token", "sequence"] = "token"  # one policy ratio per token, or per response
    kl_coef: float = 0.0  # weight of the KL to the initial policy; above 0 needs a reference
    kl_estimator: Literal["k1", "k2", "k3", "k3-ratio"] = "k3"  # k2, k3-ratio: exact gradient; k1: refused
    entropy_coef: float = 0.0  # weight of the entropy bonus
    importance_cap: float | None = None  # cap of the trainer / rollout weights; None = no correction

    def __post_init__(self) -> None:
        if self.kl_estimator == "k1":
            raise ConfigError(
                "algo.kl_estimator (grpo): 'k1' cannot be used in a loss: its expected gradient is zero; "
                "use k3, k2 or k3-ratio"
            )
        if self.group_size < 2:
            raise self._error("group_size", "a group of one has no baseline; use 2 or more")
        if not 0.0 < self.clip_ratio < 1.0:
            raise self._error("clip_ratio", "must lie between 0 and 1")
        if self.clip_ratio_high is not None and self.clip_ratio_high <= 0.0:
            raise self._error("clip_ratio_high", "must be above 0, or null for clip_ratio")
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise self._error("dual_clip", "must be above 1, or null for off")
        if self.importance_cap is not None and self.importance_cap <= 0.0:
            raise self._error("importance_cap", "must be above 0, or null for off")
        for name in ("kl_coef", "entropy_coef"):
            if getattr(self, name) < 0.0:
                raise self._error(name, "must be 0 or more")
        self._check_norm()

    def _check_norm(self) -> None:
        uses_norm = self.loss_aggregation == "seq-mean-token-sum-norm"
        if uses_norm and self.max_tokens_norm < 1:
            raise self._error(
                "max_tokens_norm", "seq-mean-token-sum-norm divides by it; set it to sampling.max_new_tokens"
            )
        if not uses_norm and self.max_tokens_norm:
            raise self._error(
                "max_tokens_norm",
                f"only loss_aggregation=seq-mean-token-sum-norm uses it, not {self.loss_aggregation}",
            )

    def _error(self, name: str, reason: str) -> ConfigError:
        return ConfigError(f"algo.{name} (grpo): {getattr(self, name)!r}: {reason}")
