"""Weights that stay on accelerators: handles for who sits on the same one, broadcasts for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any

from rlinf_core.api.backend import WeightBucket
from rlinf_core.comm.places import cast_bucket
from rlinf_core.comm.weights import Changes
from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.distributed_c10d import Store

_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class HandleBucket:
    """A bucket on the accelerator of its receivers. A handle is opened once, so each receiver has its own."""

    version: int
    handles: Mapping[str, tuple[tuple[str, Any], ...]]  # receiver -> tensors. Any: as torch reduces them
    last: bool = False
    sums: Mapping[str, int] | None = None  # of the tensors, where they are to be compared


@dataclass(frozen=True)
class GroupBucket:
    """A bucket that a broadcast brings, tensors of one dtype joined."""

    version: int
    tensors: Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]]  # dtype -> names and shapes
    last: bool = False
    sums: Mapping[str, int] | None = None


class Handles:
    """The sender's side for receivers of its own accelerator: nothing is copied, or what has to be cast."""

    def __init__(self, readers: Iterable[str]) -> None:
        self.changes = Changes()
        self._readers = tuple(readers)
        self._kept: list[Tensor] = []  # until the next version, for those who read casts of them

    def write(self, bucket: WeightBucket, dtype: str = "", *, checked: bool = False) -> HandleBucket:
        """Handles of a bucket, floats as `dtype`."""
        from torch.multiprocessing.reductions import reduce_tensor

        tensors = {name: tensor.detach() for name, tensor in cast_bucket(bucket, dtype).tensors.items()}
        self._kept += tensors.values()
        handles = {
            reader: tuple((name, reduce_tensor(tensor)) for name, tensor in tensors.items())  # type: ignore[no-untyped-call]
            for reader in self._readers
        }
        sums = sums_of(tensors) if checked else None
        return HandleBucket(bucket.version, handles, bucket.last, sums)


def open_handles(bucket: HandleBucket, reader: str) -> WeightBucket:
    """The bucket as one receiver sees it, in the sender's memory. Raises `ModelError` where a checksum came
    along and is another one."""
    tensors = {name: rebuild(*arguments) for name, (rebuild, arguments) in bucket.handles[reader]}
    _compare(tensors, bucket)
    return WeightBucket(bucket.version, _parameters(tensors), bucket.last)


class Group:
    """A process group of one sender and its receivers, beside any other of the process; made when it is first
    used, by all of them at once."""

    def __init__(self, address: str, port: int, rank: int, size: int) -> None:
        self._address, self._port = address, port
        self._rank, self._size = rank, size
        self._store: Store | None = None
        self._backends: dict[str, Any] = {}  # device type -> torch's backend, which has no stubs

    @classmethod
    def opened(cls, address: str, size: int) -> tuple[Group, int]:
        """The sender's, and the port at which others find it."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        made = cls(address, 0, 0, size)
        store = TCPStore(address, 0, is_master=True, timeout=_TIMEOUT, wait_for_workers=False)
        made._store, made._port = store, store.port
        return made, made._port

    def told(
        self, bucket: WeightBucket, dtype: str, *, checked: bool = False
    ) -> tuple[GroupBucket, list[Tensor]]:
        """What receivers are told of a bucket, floats as `dtype`, and what is to be broadcast of it."""
        import torch

        by_kind: dict[str, dict[str, Tensor]] = {}
        cast = cast_bucket(bucket, dtype).tensors
        for name, tensor in cast.items():
            by_kind.setdefault(str(tensor.dtype).removeprefix("torch."), {})[name] = tensor.detach()
        joined = [torch.cat([each.reshape(-1) for each in tensors.values()]) for tensors in by_kind.values()]
        shapes = {
            kind: tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items())
            for kind, tensors in by_kind.items()
        }
        return GroupBucket(bucket.version, shapes, bucket.last, sums_of(cast) if checked else None), joined

    def send(self, joined: Iterable[Tensor]) -> None:
        """Broadcast; returns when it may be written to again."""
        for tensor in joined:
            self._broadcast(tensor)

    def receive(self, bucket: GroupBucket, device: str) -> WeightBucket:
        """Take part in the broadcast of a bucket, on this device. Raises `ModelError` as `open_handles`."""
        import torch

        tensors: dict[str, Tensor] = {}
        for kind, shapes in bucket.tensors.items():
            counts = [prod(shape) for _, shape in shapes]
            joined = torch.empty(sum(counts), dtype=getattr(torch, kind), device=device)
            self._broadcast(joined)
            for (name, shape), part in zip(shapes, torch.split(joined, counts), strict=True):
                tensors[name] = part.view(shape)
        _compare(tensors, bucket)
        return WeightBucket(bucket.version, _parameters(tensors), bucket.last)

    def close(self) -> None:
        """Leave it."""
        for backend in self._backends.values():
            backend.shutdown()
        self._backends.clear()
        self._store = None

    def _broadcast(self, tensor: Tensor) -> None:
        if tensor.numel():
            bits = tensor.view(_bytes())  # of any dtype, also those that a library cannot send
            self._backend(tensor.device).broadcast(bits, 0).wait()
            if tensor.is_cuda:
                import torch

                torch.cuda.current_stream(tensor.device).synchronize()

    def _backend(self, device: torch.device) -> Any:  # Any: torch's backends have no stubs
        if device.type not in self._backends:
            self._backends[device.type] = self._make(device)
        return self._backends[device.type]

    def _make(self, device: torch.device) -> Any:  # Any: as above
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torch.distributed import distributed_c10d as c10d

        if self._store is None:
            self._store = TCPStore(self._address, self._port, timeout=_TIMEOUT)
        store = c10d.PrefixStore(device.type, self._store)
        if device.type != "cuda":
            return c10d.ProcessGroupGloo(store, self._rank, self._size, _TIMEOUT)
        library: Any = c10d.ProcessGroupNCCL  # Any: missing where torch has no NCCL
        options = library.Options()
        options._timeout = _TIMEOUT
        return library(store, self._rank, self._size, options)


def sums_of(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The sum of each one's elements, their bits taken for numbers, on whatever device it is."""
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {
        name: int(tensor.detach().reshape(-1).view(kinds[tensor.element_size()]).sum(dtype=torch.int64))
        for name, tensor in tensors.items()
    }


def _compare(tensors: Mapping[str, Tensor], bucket: HandleBucket | GroupBucket) -> None:
    if bucket.sums is not None and (wrong := set(bucket.sums.items()) ^ set(sums_of(tensors).items())):
        name = min(name for name, _ in wrong)
        raise ModelError(
            f"weight {name!r} of version {bucket.version} is not what was sent: its checksum differs"
        )


def _bytes() -> torch.dtype:
    import torch

    return torch.uint8


def _parameters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    import torch

    return {name: torch.nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()}
