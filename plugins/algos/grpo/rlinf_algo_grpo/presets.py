"""Published relatives of GRPO: the same algorithm with the defaults of their papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf_algo_grpo.config import GRPOConfig


@dataclass(frozen=True)
class DrGRPOConfig(GRPOConfig):
    """Dr. GRPO (Liu et al., "Understanding R1-Zero-Like Training", 2025)."""

    algorithm: ClassVar[str] = "dr_grpo"

    scale_by_std: bool = False  # scaling would favour prompts that are too easy or too hard
    loss_aggregation: Literal[
        "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
    ] = "seq-mean-token-sum-norm"  # a constant norm: dividing by lengths would favour long wrong responses


@dataclass(frozen=True)
class GSPOConfig(GRPOConfig):
    """GSPO (Zheng et al., "Group Sequence Policy Optimization", 2025)."""

    algorithm: ClassVar[str] = "gspo"

    importance_level: Literal["token", "sequence"] = "sequence"  # geometric mean of a response's ratios
    clip_ratio: float = 3e-4  # of the ratio of a whole response, which moves far less than a token's
    clip_ratio_high: float | None = 4e-4  # likewise
    loss_aggregation: Literal[
        "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
    ] = "seq-mean-token-mean"  # every response weighs the same


@dataclass(frozen=True)
class RLOOConfig(GRPOConfig):
    """RLOO (Ahmadian et al., "Back to Basics", 2024): REINFORCE on whole responses."""

    algorithm: ClassVar[str] = "rloo"

    baseline: Literal["group", "leave-one-out", "greedy"] = "leave-one-out"  # mean of the others: unbiased
    scale_by_std: bool = False  # the advantage is the reward minus its baseline
    importance_level: Literal["token", "sequence"] = "sequence"  # a response is one action
    loss_aggregation: Literal[
        "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
    ] = "seq-mean-token-sum"  # its log-probability is the sum of its tokens'


@dataclass(frozen=True)
class CISPOConfig(GRPOConfig):
    """CISPO (MiniMax, "MiniMax-M1", 2025), bounded above as in ScaleRL (Khatri et al. 2025)."""

    algorithm: ClassVar[str] = "cispo"

    policy_loss: Literal["clip", "weighted"] = "weighted"  # no token loses its gradient to a clip
    clip_ratio: float = 1.0  # no lower bound
    clip_ratio_high: float | None = 4.0  # a token weighs 5 times its gradient at most


@dataclass(frozen=True)
class ReMaxConfig(GRPOConfig):
    """ReMax (Li et al., 2024): REINFORCE with the reward of the greedy response as baseline."""

    algorithm: ClassVar[str] = "remax"

    group_size: int = 1  # responses per prompt; the greedy one comes on top
    baseline: Literal["group", "leave-one-out", "greedy"] = "greedy"  # what the likeliest response gets
    scale_by_std: bool = False  # the advantage is the reward minus its baseline
    loss_aggregation: Literal[
        "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
    ] = "seq-mean-token-sum"  # the log-probability of a response is the sum of its tokens'
