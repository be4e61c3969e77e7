"""Options of the policy loss; an algorithm's config dataclass inherits them and may change defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class PolicyOptions:
    """The loss of decisions, given their advantages."""

    algorithm: ClassVar[str] = ""  # named in errors

    policy_loss: Literal["clip", "weighted"] = "clip"  # PPO's clipped loss, or CISPO's clipped weights
    clip_ratio: float = 0.2  # the policy ratio is clipped at 1 - clip_ratio
    clip_ratio_high: float | None = None  # and at 1 + clip_ratio_high; None = clip_ratio
    dual_clip: float | None = None  # bounds the loss of bad tokens at dual_clip * |advantage|; None = off
    importance_level: Literal["token", "sequence"] = "token"  # one policy ratio per token, or per response
    loss_aggregation: Literal[
        "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
    ] = "token-mean"  # how losses of tokens become one number
    max_tokens_norm: int = 0  # the constant of seq-mean-token-sum-norm; 0 = the longest response allowed
    kl_coef: float = 0.0  # weight of the KL to the initial policy; above 0 needs a reference
    kl_estimator: Literal["k1", "k2", "k3", "k3-ratio"] = "k3"  # k2, k3-ratio: exact gradient; k1: refused
    entropy_coef: float = 0.0  # weight of the entropy bonus
    importance_cap: float | None = None  # cap of the trainer / rollout weights; None = no correction
    importance_cap_level: Literal["token", "sequence", "geometric"] = "token"  # what gets a weight of its own
    importance_cap_mode: Literal["truncate", "mask"] = "truncate"  # mask: no weight outside [1/cap, cap]
    decoupled: bool = False  # clip around the trainer's policy before its first update, not the rollout's
    mask_truncated: bool = False  # leave out responses that a length limit cut

    def __post_init__(self) -> None:
        self._check_clips()
        self._check_kl()
        self._check_norm()
        self._check_correction()
        if self.entropy_coef < 0.0:
            raise self.error("entropy_coef", "must be 0 or more")

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl_coef > 0.0

    def needs(self, **more: Any) -> AlgorithmNeeds:  # Any: fields of AlgorithmNeeds
        """What these options need around an algorithm, and what it needs besides."""
        stated = {
            "reference": self.kl_coef > 0.0,
            "entropy": self.entropy_coef > 0.0,
            "length_limit": self.uses_length_limit,
            "recompute_old": self.decoupled or self.importance_cap is not None,
            "off_policy": True,
        }
        return AlgorithmNeeds(**{**stated, **more})

    def error(self, name: str, reason: str) -> ConfigError:
        """The error of one option."""
        return ConfigError(f"algo.{name} ({self.algorithm}): {getattr(self, name)!r}: {reason}")

    def refuse_unused(self, name: str, reason: str) -> None:
        """Raise the error of an option that has no effect, if it has been changed."""
        if getattr(self, name) != getattr(type(self), name):
            raise self.error(name, reason)

    def _check_clips(self) -> None:
        high = 1.0 if self.policy_loss == "clip" else 1.0 + 1e-9
        if not 0.0 < self.clip_ratio < high:
            raise self.error("clip_ratio", "must lie between 0 and 1")
        if self.clip_ratio_high is not None and self.clip_ratio_high <= 0.0:
            raise self.error("clip_ratio_high", "must be above 0, or null for clip_ratio")
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise self.error("dual_clip", "must be above 1, or null for off")
        if self.dual_clip is not None and self.policy_loss == "weighted":
            raise self.error("dual_clip", "only policy_loss=clip uses it; set it to null")

    def _check_kl(self) -> None:
        if self.kl_coef < 0.0:
            raise self.error("kl_coef", "must be 0 or more")
        if self.kl_coef == 0.0:
            self.refuse_unused("kl_estimator", "has no effect while kl_coef is 0")
        if self.kl_in_loss and self.kl_estimator == "k1":
            raise self.error(
                "kl_estimator",
                "cannot be used in a loss: its expected gradient is zero; use k3, k2 or k3-ratio",
            )

    def _check_correction(self) -> None:
        least = 1.0 if self.importance_cap_mode == "mask" else 0.0
        if self.importance_cap is not None and self.importance_cap <= least:
            raise self.error("importance_cap", f"must be above {least:g}, or null for off")
        if self.importance_cap is None and self.importance_cap_mode == "mask":
            raise self.error("importance_cap_mode", "masks by importance_cap; set that too")
        if self.importance_cap is None and not self.decoupled and self.importance_cap_level != "token":
            raise self.error("importance_cap_level", "has no effect without importance_cap")

    def _check_norm(self) -> None:
        if self.max_tokens_norm < 0:
            raise self.error("max_tokens_norm", "must be 0 or more")
        if self.max_tokens_norm and self.loss_aggregation != "seq-mean-token-sum-norm":
            raise self.error(
                "max_tokens_norm",
                f"only loss_aggregation=seq-mean-token-sum-norm uses it, not {self.loss_aggregation}",
            )

    @property
    def uses_length_limit(self) -> bool:
        """Whether the loss is divided by the longest response allowed."""
        return self.loss_aggregation == "seq-mean-token-sum-norm" and not self.max_tokens_norm
