"""What a trainer is built from, whatever the number of ranks, and what is built for one number of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlinf_backend_fsdp.leaves import Leaves, distributed
from rlinf_backend_fsdp.optimizer import Optimizer
from rlinf_backend_fsdp.policy import PolicyModule, build_policy, frozen_copy
from rlinf_backend_fsdp.reference import Reference
from rlinf_backend_fsdp.world import World
from rlinf_core.api import LoRAConfig, Model
from rlinf_core.errors import ConfigError
from rlinf_core.types import Sampling

if TYPE_CHECKING:
    from rlinf_backend_fsdp.config import FSDPConfig

ALIGNED = 64  # bytes


@dataclass
class Body:
    """What depends on how many ranks there are."""

    world: World
    policy: PolicyModule
    reference: Reference
    sharded: bool
    leaves: Leaves
    optimizer: Optimizer


@dataclass
class Blueprint:
    """Modules whose parameters hold nothing, or why there are none."""

    hollow: PolicyModule | None
    problem: Exception | None = None

    @classmethod
    def of(cls, policy: PolicyModule) -> Blueprint:
        """Of a policy that has not computed anything yet, and is not sharded."""
        try:
            return cls(_hollow(policy))
        except Exception as err:  # the border of a model: it trains all the same
            return cls(None, err)

    def policy(self) -> PolicyModule:
        """The modules again. Raises `ConfigError` where they cannot be copied."""
        if self.hollow is None:
            raise ConfigError(
                f"backend fsdp: the number of ranks cannot change: the model's modules cannot be copied "
                f"({self.problem})"
            ) from self.problem
        return _hollow(self.hollow)


@dataclass
class Ground:
    """What stays when the number of ranks changes."""

    config: FSDPConfig
    model: Model
    lora: LoRAConfig
    seed: int
    blueprint: Blueprint
    reference: Blueprint | None  # of a frozen copy of the policy, where one is kept


def build_ground(
    config: FSDPConfig,
    model: Model,
    lora: LoRAConfig,
    seed: int,
    sampling: Sampling | None,
    *,
    keep_reference: bool,
) -> tuple[Ground, PolicyModule, PolicyModule | None]:
    """With the policy and the copy that it was found from, on the CPU. Raises `ConfigError`."""
    policy = build_policy(model, lora, sampling, config, seed)
    frozen = frozen_copy(policy, model, seed) if keep_reference and not lora.rank else None
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        raise ConfigError("backend fsdp: the model has no parameter that requires a gradient")
    reference = None if frozen is None else Blueprint.of(frozen)
    return Ground(config, model, lora, seed, Blueprint.of(policy), reference), policy, frozen


class Room:
    """Memory that was touched before it is needed: the system gives out pages one by one, which takes longer
    than to fill them."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._bytes = torch.empty(size, dtype=torch.uint8, device=device).zero_()
        self._used = 0

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor of that shape and dtype, zero where nobody has written; new memory once all is used."""
        begin = -(-self._used // ALIGNED) * ALIGNED
        if begin + tensor.nbytes > self._bytes.numel() or not tensor.nbytes:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=self._bytes.device)
        self._used = begin + tensor.nbytes
        return self._bytes[begin : self._used].view(tensor.dtype).view(tensor.shape)


def materialise(policy: PolicyModule, device: torch.device, room: Callable[[Tensor], Tensor]) -> None:
    """Give hollow parameters memory that `room` makes for each; tied ones stay tied."""
    made: dict[int, nn.Parameter] = {}
    state: dict[str, Tensor] = {}
    lengths: list[tuple[Any, int]] = []  # Any: a DTensor's own part has no public setter
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        if id(parameter) not in made:
            hollow = parameter.detach()
            made[id(parameter)] = nn.Parameter(_padded(hollow, room), requires_grad=parameter.requires_grad)
            if isinstance(hollow, DTensor):
                lengths.append((made[id(parameter)], len(hollow.to_local())))
        state[name] = made[id(parameter)]
    policy.load_state_dict(state, strict=False, assign=True)  # which FSDP is told of
    for sharded, length in lengths:
        sharded._local_tensor = sharded._local_tensor[:length]
    for part in policy.modules():
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = buffer.to(device)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def filled(hollow: Tensor, room: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor like this one, distributed as it is."""
    return distributed(room(hollow.to_local() if isinstance(hollow, DTensor) else hollow), hollow)


def _padded(hollow: Tensor, room: Callable[[Tensor], Tensor]) -> Tensor:
    """The same, with as many rows on every rank: FSDP would make memory for those that are missing on the
    last ones, which takes long as nobody has touched it."""
    if not isinstance(hollow, DTensor):
        return room(hollow)
    rows = shard_rows(len(hollow), hollow.device_mesh.size())
    return distributed(room(hollow.to_local().new_empty((rows, *hollow.shape[1:]))), hollow)


def shard_rows(rows: int, ranks: int) -> int:
    """Of each rank but the last ones, by the rule of `fully_shard`, which is that of `torch.chunk`."""
    return -(-rows // ranks)


def _hollow(policy: PolicyModule) -> PolicyModule:
    known: dict[int, object] = {id(policy._model): policy._model}
    for parameter in policy.parameters():
        nothing = torch.empty_like(parameter, device="meta")
        known[id(parameter)] = nn.Parameter(nothing, requires_grad=parameter.requires_grad)
    return copy.deepcopy(policy, known)
