"""The trained module: a root around the model's own, its adapters, its sharding and its precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from rlinf_core.adapters import adapted_module
from rlinf_core.api import LoRAConfig, Model, PolicyOutputs, Want
from rlinf_core.types import Sampling

if TYPE_CHECKING:
    from rlinf_backend_fsdp.config import FSDPConfig
    from rlinf_backend_fsdp.world import World

SHARD_FROM = 64_000_000  # parameters; below, replicas with one reduction a step are faster
Outputs = tuple[Tensor, Tensor | None, Tensor | None]


class PolicyModule(nn.Module):
    """Computes the model's policy outputs inside of `forward`, where sharding gathers the parameters."""

    def __init__(self, model: Model, inner: nn.Module, sampling: Sampling | None, bf16: bool) -> None:
        super().__init__()
        self.inner = inner
        self._model = model
        self._sampling = sampling
        self._bf16 = bf16

    def forward(self, inputs: Mapping[str, Tensor], want: frozenset[Want]) -> Outputs:
        """A tuple, of copies where it is sharded: hooks find no tensors in dataclasses, and mind views."""
        with self._precision(next(iter(inputs.values())).device.type):
            found = self._model.policy_outputs(self.inner, inputs, want, self._sampling)
        copy = isinstance(self, FSDPModule)
        logprobs_BT = found.logprobs_BT.to(torch.float32, copy=copy)
        return logprobs_BT, _float(found.entropy_BT, copy), _float(found.values_BT, copy)

    def policy(self, inputs: Mapping[str, Tensor], want: frozenset[Want]) -> PolicyOutputs:
        """The outputs as the interface has them."""
        return PolicyOutputs(*self(inputs, want))

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under the names of the model's own module."""
        return self.inner.named_parameters()

    def _precision(self, device: str) -> AbstractContextManager[None]:
        return torch.autocast(device, torch.bfloat16) if self._bf16 else nullcontext()


def build_policy(
    model: Model, lora: LoRAConfig, sampling: Sampling | None, config: FSDPConfig, seed: int
) -> PolicyModule:
    """The policy on the CPU, not yet sharded. Blocks recompute in backward where the config says so."""
    inner = adapted_module(model, lora, seed)
    root = PolicyModule(model, inner.eval(), sampling, config.precision == "bf16")
    if config.gradient_checkpointing:
        for block in blocks(model, root):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return root


def frozen_copy(policy: PolicyModule, model: Model, seed: int) -> PolicyModule:
    """The policy as it is now, on the CPU, without gradients."""
    inner = model.module(seed)
    inner.load_state_dict(policy.inner.state_dict())
    return PolicyModule(model, inner.eval().requires_grad_(False), policy._sampling, policy._bf16)


def wants_sharding(policy: PolicyModule, config: FSDPConfig, ranks: int) -> bool:
    """Whether parameters are sharded over so many ranks."""
    if ranks == 1 or config.sharding != "auto":
        return ranks > 1 and config.sharding == "full"
    return sum(parameter.numel() for parameter in policy.parameters()) >= SHARD_FROM


def shard(policy: PolicyModule, model: Model, config: FSDPConfig, world: World) -> None:
    """Shard every block, the value head and the rest, gradients summed (not averaged) over ranks in
    float32. A value head is float32 whatever the rest is, which a group of its own allows."""
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if config.precision == "bf16" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    head = model.value_head(policy.inner)
    if head is not None:
        whole = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        fully_shard(head, mesh=world.mesh, mp_policy=whole)
    for part in [*blocks(model, policy), policy]:
        fully_shard(part, mesh=world.mesh, mp_policy=precision)
    for part in policy.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def blocks(model: Model, policy: PolicyModule) -> list[nn.Module]:
    """The model's repeated units."""
    return model.blocks(policy.inner)


def adapter_dropouts(policy: PolicyModule) -> list[nn.Module]:
    """The dropouts that only adapters have. All else stays in evaluation mode, as in rollout."""
    return [part for name, part in policy.named_modules() if "lora_dropout" in name]


def _float(tensor: Tensor | None, copy: bool) -> Tensor | None:
    return None if tensor is None else tensor.to(torch.float32, copy=copy)
