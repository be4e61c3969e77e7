"""Workers for tests of updates, importable in their processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from rlinf_core.api import WeightBucket, WeightPart
from rlinf_core.comm.on_device import HandleBucket
from rlinf_core.comm.transport import Standpoint
from rlinf_core.errors import ModelError
from rlinf_core.roles.publishing import Publisher
from rlinf_core.roles.weights import Receiver
from rlinf_core.roles.weights import Sent as Message
from rlinf_core.worker import WorkerContext

Sent = tuple[int, dict[str, float]]
SIZES = {"embedding": 200_000, "layer": 300_000, "norm": 30, "steps": 3}
FROZEN = "embedding"


def parameters(version: int) -> dict[str, float]:
    """Every element of each tensor of a version."""
    return {name: 0.0 if name == FROZEN else float(version) for name in SIZES}


class Weights:
    """As much of a trainer as an update sees."""

    def __init__(self, *, live: bool, rank: int = 0, ranks: int = 1, device: str = "cpu") -> None:
        self.version = 0
        self._rank, self._ranks = rank, ranks
        self.tensors: dict[str, torch.Tensor] = {
            name: torch.zeros(size, dtype=torch.int64 if name == "steps" else torch.float32, device=device)
            for name, size in SIZES.items()
        }
        if live:
            for name in ("embedding", "layer"):
                self.tensors[name] = torch.nn.Parameter(self.tensors[name], requires_grad=False)

    def parts(self, *, trainable_only: bool = False) -> Iterator[dict[str, WeightPart]] | None:
        """Where there are several ranks, of every tensor a part that is larger with the rank."""
        return self._divided(trainable_only) if self._ranks > 1 else None

    def _divided(self, trainable_only: bool) -> Iterator[dict[str, WeightPart]]:
        for name, tensor in self.tensors.items():
            if not (trainable_only and name == FROZEN):
                whole = self._ranks * (self._ranks + 1) // 2
                begin, end = (len(tensor) * n * (n + 1) // 2 // whole for n in (self._rank, self._rank + 1))
                yield {name: WeightPart(tuple(tensor.shape), begin, tensor[begin:end])}

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """One tensor a bucket."""
        assert self._ranks == 1, "nothing is gathered"
        names = [name for name in SIZES if not (trainable_only and name == FROZEN)]
        for name in names:
            yield WeightBucket(self.version, {name: self.tensors[name]}, last=name == names[-1])


class Sender(Publisher):
    """Has weights that change."""

    def __init__(
        self, context: WorkerContext, *, live: bool = False, accelerator: str = "", checks: bool = False
    ) -> None:
        super().__init__(context)
        self.checks = checks
        self._accelerator = accelerator
        self.trainer: Any = Weights(
            live=live, rank=context.rank, ranks=context.world_size, device=context.device
        )

    def standpoint(self) -> Standpoint:
        """Perhaps that of an accelerator."""
        own = super().standpoint()
        return replace(own, accelerator=self._accelerator) if self._accelerator else own

    def train(self) -> None:
        """The next version, in place."""
        self.trainer.version += 1
        for name, tensor in self.trainer.tensors.items():
            if name != FROZEN:
                tensor.fill_(self.trainer.version)


class Taker(Receiver):
    """Takes the memory that it is shown for its own."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        pretends_to_be_far: bool | Sequence[int | str] = False,
        dtype: str = "",
        dies_at: int | tuple[str, int] = -1,
        machines: bool = False,
        accelerators: Sequence[str] = (),
        opens_no_handles: bool = False,
        checks: bool = False,
        refuses_at: tuple[str, int] = ("", -1),
    ) -> None:
        super().__init__(replace(context, reach="127.0.0.1") if machines else context)
        self.checks = checks
        self._refuses_at = refuses_at[1] if refuses_at[0] == context.name else -2
        self._machines = machines
        self._accelerator = accelerators[context.rank] if accelerators else ""
        self._opens_handles = not opens_no_handles
        far = pretends_to_be_far
        self._far = far if isinstance(far, bool) else context.rank in far or context.name in far
        self._dtype = dtype
        who, version = (context.name, dies_at) if isinstance(dies_at, int) else dies_at
        self._dies_at = version if who == context.name else -1
        self._held: dict[str, torch.Tensor] = {}
        self._version = -1
        self._loads = 0

    def standpoint(self) -> tuple[Standpoint, str]:
        """Perhaps that of another machine."""
        own, dtype = super().standpoint()
        if self._accelerator:
            own = replace(own, accelerator=self._accelerator)
        elsewhere = f"elsewhere-{self.context.rank}" if self._machines else "elsewhere"
        return (replace(own, machine=elsewhere) if self._far or self._machines else own), dtype

    def weight_dtype(self) -> str:
        """As told."""
        return self._dtype

    def _opened(self, bucket: Message) -> WeightBucket:
        if isinstance(bucket, HandleBucket) and not self._opens_handles:
            raise RuntimeError("invalid device context")
        return super()._opened(bucket)

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Keep what is shown, or die of it."""
        self._loads += 1
        for bucket in buckets:
            if bucket.version == self._refuses_at:
                raise ModelError(f"{self.context.name} has no room")
            if bucket.version == self._dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self._held |= bucket.tensors
            self._version = bucket.version
        return self._version

    def held(self) -> Sent:
        """The version, and every element of each tensor; those that differ within one are no number."""
        found = {}
        for name in SIZES:
            low, high = self._held[name].aminmax()
            found[name] = float(low) if low == high else float("nan")
        return self._version, found

    def dtypes(self) -> set[str]:
        """Of what is held."""
        return {str(tensor.dtype).removeprefix("torch.") for tensor in self._held.values()}

    def forget(self) -> None:
        """As after a restart."""
        self.__dict__.pop("reader", None)
        self._held, self._version, self._loads = {}, -1, 0

    def loads(self) -> int:
        """How many updates began."""
        return self._loads
