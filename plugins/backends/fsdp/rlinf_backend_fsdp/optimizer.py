"""AdamW with its learning-rate schedule over the leaves (Loshchilov and Hutter 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rlinf_backend_fsdp.leaves import Leaves
from rlinf_core.api import OptimizerConfig, StepStats


class Optimizer:
    """One optimizer and schedule; made anew by `reset_optimizer`."""

    def __init__(
        self,
        config: OptimizerConfig,
        total_steps: int,
        leaves: Leaves,
        room: Callable[[Tensor], Tensor] = torch.zeros_like,
    ) -> None:
        self.config = config
        self.total_steps = total_steps
        self.leaves = leaves
        self.steps_taken = 0
        self.skipped_steps = 0
        self._moments: dict[str, list[Tensor]] = {
            "step": [torch.zeros((), device=leaf.device) for leaf in leaves.leaves],
            "exp_avg": [room(leaf.detach()) for leaf in leaves.leaves],
            "exp_avg_sq": [room(leaf.detach()) for leaf in leaves.leaves],
        }

    def step(self, denominator: float) -> StepStats:
        """Sum, divide, clip, update, forget the gradient. One that is not finite is not applied; the
        schedule goes on."""
        denominator = denominator or 1.0  # no row counted, so there is no gradient either
        gradients = self.leaves.collect()
        norm = math.sqrt(float(self.leaves.square_norm(gradients))) / abs(denominator)
        lr = self.config.lr_at(self.steps_taken, self.total_steps)
        finite = math.isfinite(norm)
        if finite and gradients:
            clip = self.config.grad_clip
            factor = clip / norm if clip and norm > clip else 1.0
            torch._foreach_mul_(gradients, factor / denominator)
            self._update(gradients, lr)
        self.leaves.clear()
        self.steps_taken += 1
        self.skipped_steps += not finite
        return StepStats(norm, lr, skipped=not finite)

    @torch.no_grad()
    def _update(self, gradients: list[Tensor], lr: float) -> None:
        """The kernel of `torch.optim.AdamW(fused=True)`, without what surrounds it: for a small policy that
        takes longer than the update."""
        steps = self._each("step")
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            self.leaves.leaves,
            gradients,
            self._each("exp_avg"),
            self._each("exp_avg_sq"),
            [],
            steps,
            amsgrad=False,
            lr=lr,
            beta1=self.config.betas[0],
            beta2=self.config.betas[1],
            weight_decay=self.config.weight_decay,
            eps=self.config.eps,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """The state tensors themselves, by a name that holds for any number of ranks."""
        return self._named(self.leaves.by_name)

    def parts(self) -> dict[str, Tensor]:
        """This rank's part of `state`."""
        return self._named(self.leaves.parts)

    def tensors(self) -> list[Tensor]:
        """Every tensor of the state."""
        return [tensor for kind in ("step", "exp_avg", "exp_avg_sq") for tensor in self._each(kind)]

    def after_load(self, steps_taken: int, skipped_steps: int) -> None:
        """Take up the counters; every leaf has taken the same number of updates as the first."""
        self.steps_taken, self.skipped_steps = steps_taken, skipped_steps
        for step in self._each("step")[1:]:
            step.copy_(self._each("step")[0])

    def _named(self, by_name: Callable[[list[Tensor]], dict[str, Tensor]]) -> dict[str, Tensor]:
        moments = {
            f"{kind}.{name}": tensor
            for kind in ("exp_avg", "exp_avg_sq")
            for name, tensor in by_name(self._each(kind)).items()
        }
        return {**moments, "step": self._each("step")[0]} if moments else {}

    def _each(self, kind: str) -> list[Tensor]:
        return self._moments[kind]
