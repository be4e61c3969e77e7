"""A plain trainer for one process: the smallest whole `TrainBackend`, to start a new one from."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.api import (
    POLICY,
    LoRAConfig,
    LossFunction,
    MetricSums,
    Model,
    OptimizerConfig,
    PolicyOutputs,
    StepStats,
    TrainBackend,
    TrainBatch,
    Trainer,
    TrainerContext,
    Want,
    WeightBucket,
)
from rlinf_core.errors import CheckpointError, ConfigError
from rlinf_core.types import Sampling

FILE = "trainer.pt"


class SimpleTrainer(Trainer):
    """AdamW on one rank; override `make_optimizer` for another optimizer."""

    def __init__(
        self,
        model: Model,
        optimizer: OptimizerConfig,
        context: TrainerContext,
        sampling: Sampling | None,
        keep_reference: bool,
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.device = context.device
        self.module = model.module(context.seed).to(context.device)
        self.initial = copy.deepcopy(self.module).requires_grad_(False) if keep_reference else None
        self.reset_optimizer(optimizer, context.total_steps)

    def make_optimizer(self, config: OptimizerConfig) -> torch.optim.Optimizer:
        """The optimizer over all parameters."""
        return torch.optim.AdamW(
            self.module.parameters(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
        )

    def outputs(
        self, inputs: Mapping[str, Tensor], want: frozenset[Want], *, reference: bool = False
    ) -> PolicyOutputs:
        """Without gradient."""
        module = self.initial if reference else self.module
        with torch.no_grad():
            return self.model.policy_outputs(_present(module), self._moved(inputs), want, self.sampling)

    def accumulate(self, batch: TrainBatch, loss: LossFunction, want: frozenset[Want] = POLICY) -> MetricSums:
        """Add the gradient of one micro-batch's summed loss."""
        if not bool(batch.mask_BT.any()):
            return {}
        moved = self._moved(batch.inputs)
        outputs = self.model.policy_outputs(self.module, moved, want, self.sampling)
        terms = loss(outputs, batch)
        terms.total.backward()  # type: ignore[no-untyped-call]
        return {name: (float(total), float(count)) for name, (total, count) in terms.metrics.items()}

    def step(self, denominator: float) -> StepStats:
        """Divide, clip, update. A gradient that is not finite is dropped."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.div_(denominator)
        norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
        lr = self.config.lr_at(self._steps, self._total_steps)
        skipped = not math.isfinite(norm)
        if not skipped:
            if self.config.grad_clip and norm > self.config.grad_clip:
                for gradient in gradients:
                    gradient.mul_(self.config.grad_clip / norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._steps += 1
        self.version += 1
        return StepStats(norm, lr, skipped)

    def all_sum(self, values: list[float]) -> list[float]:
        """One rank: the values themselves."""
        return list(values)

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """All parameters in one bucket, by reference."""
        yield WeightBucket(self.version, dict(self.module.named_parameters()), last=True)

    def save(self, path: Path) -> None:
        """One file."""
        path.mkdir(parents=True, exist_ok=True)
        state = {
            "module": self.module.state_dict(),
            "initial": None if self.initial is None else self.initial.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self._steps,
            "version": self.version,
            "random": torch.random.get_rng_state(),
        }
        torch.save(state, path / FILE)

    def load(self, path: Path) -> None:
        """Restore that file."""
        if not (path / FILE).exists():
            raise CheckpointError(f"no trainer state in {path}: {FILE} is missing; name a saved checkpoint")
        state: dict[str, Any] = torch.load(path / FILE, weights_only=True)  # Any: what `save` wrote
        self.module.load_state_dict(state["module"])
        if self.initial is not None and state["initial"] is not None:
            self.initial.load_state_dict(state["initial"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._steps, self.version = state["steps"], state["version"]
        torch.random.set_rng_state(state["random"])

    def export(self, path: Path) -> None:
        """The full weights, as the model writes them."""
        self.model.export(iter(self.module.state_dict().items()), path)

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A fresh optimizer and schedule."""
        self.config = optimizer
        self.optimizer = self.make_optimizer(optimizer)
        self._steps, self._total_steps = 0, total_steps

    def _moved(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.device) for name, value in inputs.items()}


class SimpleBackend(TrainBackend):
    """Builds `SimpleTrainer`, or the subclass in `trainer`."""

    trainer: type[SimpleTrainer] = SimpleTrainer

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
        """Raises `ConfigError` for adapters and for more than one rank."""
        if lora.rank:
            raise ConfigError(
                f"lora.rank: {lora.rank}, but {type(self).__name__} has no adapters; set it to 0"
            )
        if context.world_size != 1:
            raise ConfigError(
                f"ranks: {context.world_size}, but {type(self).__name__} trains on one; set it to 1"
            )
        return self.trainer(model, optimizer, context, sampling, keep_reference)


def _present(module: nn.Module | None) -> nn.Module:
    if module is None:
        raise ConfigError("the trainer keeps no reference; build it with keep_reference=True")
    return module
