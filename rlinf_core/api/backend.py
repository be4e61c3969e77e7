"""The training-backend interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlinf_core.api.model import Want

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rlinf_core.api.algorithm import LossTerms, PolicyOutputs, TrainBatch
    from rlinf_core.api.model import Model
    from rlinf_core.api.resizing import Held, Resize
    from rlinf_core.api.snapshot import Snapshot
    from rlinf_core.api.weight_part import WeightPart
    from rlinf_core.types import Sampling

POLICY: frozenset[Want] = frozenset({"logprobs", "entropy"})
LossFunction = Callable[["PolicyOutputs", "TrainBatch"], "LossTerms"]
MetricSums = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, the same for every backend."""

    lr: float = 1e-5  # learning rate
    weight_decay: float = 0.0  # decoupled, as in AdamW
    betas: tuple[float, float] = (0.9, 0.999)  # decay of the two moment averages
    eps: float = 1e-8  # added to the root of the second moment
    grad_clip: float = 1.0  # global norm; 0 = off
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate
    warmup_steps: int = 0  # optimizer steps of linear warm-up
    min_lr_ratio: float = 0.0  # of lr, where linear and cosine end

    def lr_at(self, step: int, total: int) -> float:
        """The learning rate of a step: linear warm-up, then down to `min_lr_ratio` at step `total`."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.lr
        done = min(1.0, (step - self.warmup_steps) / max(1, total - self.warmup_steps))
        left = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.lr * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * left)


@dataclass(frozen=True)
class LoRAConfig:
    """Low-rank adapters (Hu et al. 2021), rank-stabilised (Kalajdzievski 2023) or of directions alone (DoRA,
    Liu et al. 2024); `rank=0` trains the whole model."""

    rank: int = 0  # of the adapters; 0 = none
    variant: Literal["lora", "rslora", "dora"] = (
        "lora"  # rslora: scaled by alpha / sqrt(rank); dora: directions, with learned lengths beside
    )
    alpha: float = 16.0  # adapters are scaled by alpha / rank
    dropout: float = 0.0  # on the adapters' input
    target_modules: tuple[str, ...] = ("all-linear",)  # names of the modules that get adapters


@dataclass(frozen=True)
class TrainerContext:
    """Where a trainer stands: its rank among `world_size`, its device and its seed."""

    rank: int = 0
    world_size: int = 1
    device: str = "cpu"
    seed: int = 0
    total_steps: int = 1


@dataclass(frozen=True)
class DataShare:
    """Which rows a rank works on: part `index` of `count`. Ranks that hold parts of one model have the same
    share, and one of them `speaks` for it."""

    index: int
    count: int
    speaks: bool = True


@dataclass
class StepStats:
    """What one optimizer step did. `skipped`: its gradient was not finite, and no rank applied it."""

    grad_norm: float
    lr: float
    skipped: bool = False


@dataclass
class WeightBucket:
    """Some full (unsharded) tensors of one weight version, by module name."""

    version: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    last: bool = False


class Trainer(ABC):
    """One rank of a trained policy. All ranks call the same methods in the same order."""

    version: int = 0  # optimizer steps taken; the version of the weights
    padding_free: bool = False  # computes real tokens alone
    shares_prompts: bool = False  # and once a prompt that rows of a batch share
    any_order: bool = False  # has `close_part`: its ranks meet in `step` and `all_sum` alone
    share: DataShare | None = None  # of the rows; None = every rank has a share of its own

    @abstractmethod
    def outputs(
        self, inputs: Mapping[str, Tensor], want: frozenset[Want], *, reference: bool = False
    ) -> PolicyOutputs:
        """Outputs without gradient; `reference=True` asks the initial policy."""

    @abstractmethod
    def accumulate(self, batch: TrainBatch, loss: LossFunction, want: frozenset[Want] = POLICY) -> MetricSums:
        """Forward and backward of one micro-batch's summed loss, which gets the outputs named in `want`.
        A batch whose mask is all False takes part in the collectives and adds nothing."""

    def accumulate_all(
        self, batches: Iterable[TrainBatch], loss: LossFunction, want: frozenset[Want] = POLICY
    ) -> MetricSums:
        """`accumulate` several micro-batches and add their metrics; the gradient is that of one after the
        other, but a trainer may have several of them under way at once."""
        sums: MetricSums = {}
        for batch in batches:
            metrics = self.accumulate(batch, loss, want)
            if not sums:
                sums = metrics
                continue
            for name, (total, count) in metrics.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + total, before[1] + count)
        return sums

    def close_part(self) -> None:
        """What was accumulated since the last call is one part of the step's gradient. Parts add up to the
        same bits in any order and on any ranks, which may have different numbers of them. Before a `step`
        that has parts every rank closes one or more, and nothing is accumulated after the last."""
        from rlinf_core.errors import ConfigError

        raise ConfigError(f"backend {type(self).__name__} adds up gradients in one order only")

    @abstractmethod
    def step(self, denominator: float) -> StepStats:
        """Sum gradients over ranks, divide by the global denominator, clip, update; `version += 1`."""

    @abstractmethod
    def all_sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over the ranks' shares, each counted once, in float64."""

    @abstractmethod
    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """The current weights in buckets; every rank gets all of them. In a world of one, the
        tensors are the parameters themselves, not copies."""

    def parts(self, *, trainable_only: bool = False) -> Iterator[dict[str, WeightPart]] | None:
        """The buckets of `weights`, of every tensor what this rank holds, without waiting for others:
        together the ranks hold all of it. None = every rank holds whole tensors, or what only `weights` puts
        together."""
        return None

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write model, optimizer, scheduler and RNG state; every rank takes part."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Restore what `save` wrote; the number of ranks may differ. Raises `CheckpointError`."""

    def snapshot(self, *, apart: bool) -> Snapshot | None:
        """What `save` would write now, to be written without the other ranks; every rank takes one, and
        takes no other before it is written. None = there is only `save`, which stops training.

        With `apart` it holds its own copy of what training changes (made at once, or at the latest before
        that changes); without, the caller writes it before anything else happens.
        """
        return None

    @abstractmethod
    def export(self, path: Path) -> None:
        """Write the policy in the model's own format, by `Model.export`; every rank takes part."""

    def mark_reference(self) -> None:
        """The current policy becomes the one that `outputs(reference=True)` asks, also after `load`.

        Called after a warm start when an algorithm needs a reference.
        """
        from rlinf_core.errors import ConfigError

        raise ConfigError(
            f"backend {type(self).__name__} cannot take a later policy as reference; "
            "set warm_start.steps=0, or use another backend"
        )

    @abstractmethod
    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Start with a fresh optimizer and schedule, weights and version kept."""

    def held(self) -> Held:
        """The state as this rank holds it between steps, for ranks of another number of them; of backends
        that provide `resize`."""
        raise _cannot_resize(self)

    def facts(self) -> dict[str, Any]:  # Any: what can be pickled
        """The rest of the state, the same on every rank."""
        raise _cannot_resize(self)

    def resize(self, context: TrainerContext) -> Resize:
        """Prepare to be one of another number of ranks, while this trainer goes on; where its tensors can
        stay, it is this trainer that goes on afterwards."""
        raise _cannot_resize(self)

    def memory_bytes(self) -> float:
        """What this rank holds on its device between steps: weights, gradients, optimizer state. 0 =
        unknown; plans then take no account of it."""
        return 0.0

    def onload(self) -> None:
        """Bring everything onto the device."""

    def offload(self) -> None:
        """Free the device."""

    def close(self) -> None:
        """Leave process groups."""


class TrainBackend(ABC):
    """Builds trainers. Constructed with its config dataclass."""

    def __init__(self, config: Any) -> None:  # Any: each plugin has its own config dataclass
        self.config = config

    @abstractmethod
    def build(
        self,
        model: Model,
        optimizer: OptimizerConfig,
        lora: LoRAConfig,
        context: TrainerContext,
        *,
        sampling: Sampling | None = None,
        keep_reference: bool = False,
    ) -> Trainer:
        """A trainer of this rank. `sampling` is the transform applied to log-probabilities;
        `keep_reference` keeps the initial policy for `outputs(reference=True)`."""

    def join(
        self,
        model: Model,
        lora: LoRAConfig,
        context: TrainerContext,
        facts: Mapping[str, Any],
        *,
        sampling: Sampling | None = None,
        keep_reference: bool = False,
    ) -> Resize:
        """Prepare to join ranks that train already, of which one has these `facts`."""
        raise _cannot_resize(self)

    def acting_module(self, model: Model, lora: LoRAConfig, seed: int) -> nn.Module:
        """A module on the CPU for a policy that acts in simulators; its weights have the names of those that
        trainers give, adapters among them."""
        return model.module(seed)


def _cannot_resize(asked: Trainer | TrainBackend) -> Exception:
    from rlinf_core.errors import ConfigError

    return ConfigError(
        f"{type(asked).__name__} cannot change its number of ranks while it trains; end the run and resume "
        "it with other ranks"
    )
