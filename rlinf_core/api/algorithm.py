"""The algorithm interface: pure mathematics on tensors, no processes, no devices.

Axes: B rows, T decision steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlinf_core.api.capabilities import AlgorithmNeeds
    from rlinf_core.types import Experience


@dataclass
class ScoredBatch:
    """Every row of one step, over all ranks, right-padded to T."""

    rewards_B: Tensor  # float32
    groups_B: Tensor  # int64; rows with one id share a prompt
    mask_BT: Tensor  # bool
    logprobs_BT: Tensor  # float32, behaviour policy
    truncated_B: Tensor  # bool; cut by a length or time limit
    step_rewards_BT: Tensor | None = None
    reference_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    final_values_B: Tensor | None = None  # of what was seen after the last decision; 0 but for time limits
    baselines_B: Tensor | None = None  # reward of the greedy response to the same prompt
    staleness_B: Tensor | None = None  # int64; weight versions behind the trainer; None = 0
    positions: int = 1  # of T in a row that are one decision (`Model.set_logprob_level`)
    max_length: int = 0  # decisions that a row may have at most; 0 = unknown


@dataclass
class Advantages:
    """What `Algorithm.advantages` returns.

    `metrics` are logged under `train/`. A pair `(sum, count)` adds up over parts of a step, as in
    `LossTerms`; a single number is averaged over parts by their rows.
    """

    advantages_BT: Tensor  # float32, zero where the mask is False
    returns_BT: Tensor | None = None
    mask_BT: Tensor | None = None  # narrower than the batch's: decisions that are not trained after all
    metrics: dict[str, float | tuple[float, float]] = field(default_factory=dict)


@dataclass
class TrainBatch:
    """One micro-batch. `old_logprobs_BT` is None when one update uses each batch once: then the
    behaviour policy is the current one and the ratio is 1 with its gradient kept."""

    inputs: Mapping[str, Tensor]  # what the model's `collate` made
    mask_BT: Tensor  # bool
    advantages_BT: Tensor  # float32
    rollout_logprobs_BT: Tensor  # float32
    old_logprobs_BT: Tensor | None = None
    reference_logprobs_BT: Tensor | None = None
    returns_BT: Tensor | None = None
    values_BT: Tensor | None = None  # before the first update
    max_length: int = 0  # decisions that a row may have at most; 0 = unknown

    @cached_property
    def decisions(self) -> int:
        """Positions on the mask. A batch that goes to a device knows them already, and waits for nothing."""
        return int(self.mask_BT.sum())

    @property
    def holed_mask_BT(self) -> Tensor | None:
        """The mask, or None if nothing is off it, as what reads it once and again wants to know."""
        return None if self.decisions == self.mask_BT.numel() else self.mask_BT

    def to(self, device: torch.device) -> TrainBatch:
        """The same batch with all its tensors there; itself on the CPU, where batches are made."""
        if device.type == "cpu":
            return self
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        moved = {
            name: value.to(device)
            for name, value in columns.items()
            if name.endswith("_BT") and value is not None
        }
        there = replace(self, inputs={name: value.to(device) for name, value in self.inputs.items()}, **moved)
        there.__dict__["decisions"] = self.decisions
        return there


@dataclass
class PolicyOutputs:
    """What a policy says of a batch; float32, defined where the mask is True.

    `logprobs_BT` are zeros, without gradient, where they were not asked for.
    """

    logprobs_BT: Tensor
    entropy_BT: Tensor | None = None
    values_BT: Tensor | None = None


@dataclass
class LossTerms:
    """A micro-batch's loss as a *sum*; the trainer divides once by the step's global denominator.

    `metrics` maps a name to `(sum, count)`; both are added over micro-batches and ranks, and the
    logged value is their quotient.
    """

    total: Tensor  # scalar with gradient
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)


class Algorithm(ABC):
    """One RL algorithm. Constructed with its config dataclass."""

    def __init__(self, config: Any) -> None:  # Any: each plugin has its own config dataclass
        self.config = config

    @property
    @abstractmethod
    def needs(self) -> AlgorithmNeeds:
        """What this algorithm needs with its config; must equal what the spec's `needs` says."""

    @abstractmethod
    def advantages(self, batch: ScoredBatch) -> Advantages:
        """Advantages of every row. Sees the whole step, so statistics are global by construction."""

    @abstractmethod
    def denominator(self, mask_BT: Tensor) -> float:
        """The number by which the summed loss of all rows with this mask is divided (one number a
        mini-batch, additive over rows)."""

    @abstractmethod
    def loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The summed loss of one micro-batch: of the policy, and of the values if the policy has the
        value head."""

    def critic_loss(self, outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
        """The summed loss of the values alone, of algorithms that need a critic."""
        from rlinf_core.errors import ConfigError

        raise ConfigError(f"algorithm {type(self).__name__} has no loss for a critic")

    def trains_policy(self, step: int) -> bool:
        """Whether this step (counted from 0) updates the policy, or the critic alone."""
        return True

    def keep(self, group: Sequence[Experience]) -> bool:
        """Whether a scored group is trained on; a rejected one is replaced by another prompt's. Asked
        only with `needs.max_rounds`."""
        return True

    def gradient_free(self, batch: ScoredBatch, advantages: Advantages) -> Tensor:
        """`[B]` bool: rows whose loss has exactly zero gradient, so that training may skip them.

        They still count in the denominator. The default skips nothing.
        """
        return batch.mask_BT.new_zeros(batch.mask_BT.shape[0])

    def state_dict(self) -> dict[str, Any]:  # Any: plain numbers and strings, JSON-able
        """Adaptive coefficients, for checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
