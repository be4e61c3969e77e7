"""Megatron's optimizer with the denominators, the clipping and the schedule that all backends have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from torch import Tensor

from rlinf_backend_megatron.config import MegatronConfig
from rlinf_core.api import OptimizerConfig, StepStats

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Kept:
    """The optimizer's state of entries of a parameter, from `begin` on of the flat one."""

    parameter: Tensor  # the network's
    begin: int
    main: Tensor  # what is updated; a part of the parameter itself unless that has fewer bits
    moments: dict[str, Tensor]


class Optimizer:
    """One optimizer and schedule over the gradients of a wrapped network; made anew by `reset_optimizer`."""

    def __init__(
        self,
        config: OptimizerConfig,
        total_steps: int,
        network: DistributedDataParallel,
        settings: MegatronConfig,
    ) -> None:
        self.config = config
        self.total_steps = total_steps
        self.steps_taken = 0
        self.skipped_steps = 0
        self._network = network
        self.inner: Any = get_megatron_optimizer(  # Any: Megatron is not typed
            MegatronOptimizerConfig(
                optimizer="adam",
                lr=config.lr,
                weight_decay=config.weight_decay,
                adam_beta1=config.betas[0],
                adam_beta2=config.betas[1],
                adam_eps=config.eps,
                clip_grad=0.0,
                bf16=settings.precision == "bf16",
                params_dtype=torch.bfloat16 if settings.precision == "bf16" else torch.float32,
                use_distributed_optimizer=settings.distributed_optimizer,
            ),
            [network],
            config_overrides={},
            use_gloo_process_groups=False,
        )
        for part in self.parts():
            _prime(part.optimizer)

    def step(self, denominator: float) -> StepStats:
        """Sum over ranks, divide, clip, update, forget the gradient. One that is not finite is not applied;
        the schedule goes on."""
        denominator = denominator or 1.0  # no row counted, so there is no gradient either
        finalize_model_grads([self._network])
        self.inner.prepare_grads()
        norm = math.sqrt(sum(map(_square_norm, self.parts()))) / abs(denominator)
        lr = self.config.lr_at(self.steps_taken, self.total_steps)
        finite = math.isfinite(norm)
        if finite:
            clip = self.config.grad_clip
            factor = clip / norm if clip and norm > clip else 1.0
            self._network.scale_gradients(factor / denominator)
            self.inner.prepare_grads()  # where the optimizer has gradients of its own, they are copied anew
            for group in self.inner.param_groups:
                group["lr"] = lr
            self.inner.step_with_ready_grads()
        self.clear()
        self.steps_taken += 1
        self.skipped_steps += not finite
        return StepStats(norm, lr, skipped=not finite)

    def clear(self) -> None:
        """Forget the gradients."""
        self._network.zero_grad_buffer()
        self.inner.zero_grad()

    def tensors(self) -> list[Tensor]:
        """Main parameters, which may be the network's own, and every tensor of the state."""
        found = []
        for part in self.parts():
            found += [main for group in part.optimizer.param_groups for main in group["params"]]
            found += [
                held for state in part.optimizer.state.values() for held in state.values() if _is_large(held)
            ]
        return found

    def kept(self) -> Iterator[Kept]:
        """What this rank has of the optimizer's state."""
        for part in self.parts():
            for parameter, main, begin in _mains(part):
                state = part.optimizer.state[main]
                if not all(name in state for name in MOMENTS):  # TransformerEngine's, before its first step
                    part.init_state_fn(part.optimizer, part.config)
                    state = part.optimizer.state[main]
                yield Kept(parameter, begin, main, {name: state[name] for name in MOMENTS})

    def go_on(self, steps_taken: int, skipped_steps: int) -> None:
        """With a state that so many steps have made."""
        self.steps_taken, self.skipped_steps = steps_taken, skipped_steps
        count = steps_taken - skipped_steps
        for part in self.parts():
            for state in part.optimizer.state.values():
                if "step" in state:
                    state["step"].fill_(count)
            if not isinstance(part.optimizer, torch.optim.AdamW) and count:
                for group in part.optimizer.param_groups:
                    group["step"] = count

    def parts(self) -> list[Any]:
        """Optimizers of shared parameters and of experts, whose ranks differ."""
        return list(getattr(self.inner, "chained_optimizers", None) or [self.inner])


def _prime(inner: Any) -> None:
    """What torch's AdamW does in its first step, so that a checkpoint can be made and read before it."""
    if not isinstance(inner, torch.optim.AdamW):
        return
    for group in inner.param_groups:
        for parameter in group["params"]:
            inner.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }


def _mains(part: Any) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Parameters with what is updated of them, and where that begins, of each kind of optimizer."""
    if getattr(part, "is_stub_optimizer", False):
        return
    if hasattr(part, "shard_fp32_from_float16_groups"):  # the distributed one
        for models, shards in (
            (part.model_float16_groups, part.shard_fp32_from_float16_groups),
            (part.model_fp32_groups, part.shard_fp32_groups),
        ):
            for parameter, main in zip(chain(*models), chain(*shards), strict=True):
                yield parameter, main, part._get_model_param_range_map(parameter)["param"].start
    elif hasattr(part, "fp32_from_float16_groups"):
        for models, mains in (
            (part.float16_groups, part.fp32_from_float16_groups),
            (part.fp32_from_fp32_groups, part.fp32_from_fp32_groups),
        ):
            yield from zip(chain(*models), chain(*mains), repeat(0))
    else:
        for group in part.optimizer.param_groups:
            yield from ((parameter, parameter, 0) for parameter in group["params"])


def _is_large(held: Any) -> bool:
    return isinstance(held, Tensor) and held.dim() > 0


def _square_norm(part: Any) -> float:
    """Over all ranks, every element once. Megatron's own sum in float32 is off by up to 1e-4 where no fused
    kernels are installed."""
    gradients = part.get_main_grads_for_grad_norm()
    squared = torch.zeros((), dtype=torch.float64, device=torch.cuda.current_device())
    if gradients:
        squared += torch.stack(torch._foreach_norm(gradients)).double().square().sum()
    dist.all_reduce(squared, group=part.get_grad_stats_parallel_group())
    return float(squared)
