"""Tensors that leave the device for a while: their storages are emptied in place and filled again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

Bytes = torch.UntypedStorage


class Shelf:
    """Copies of storages in host memory. Whatever views a storage (parameters, a flat leaf, shards) stays
    valid: it has no data until `fetch`."""

    def __init__(self) -> None:
        self._away: dict[int, tuple[Bytes, Tensor | None, int]] = {}  # storage, its copy, its size
        self._buffers: dict[int, Tensor] = {}  # host memory, kept for the next time

    @torch.no_grad()
    def put(self, moved: Iterable[Tensor], zeros: Iterable[Tensor] = (), kept: Iterable[Tensor] = ()) -> None:
        """Empty the storages of `moved` and of `zeros`, which hold zeros and need no copy, but not those
        that tensors of `kept` lie in too. No effect while something is away."""
        if self._away:
            return
        staying = set(storages(kept))
        for tensors, copied in ((moved, True), (zeros, False)):
            for key, storage in storages(tensors).items():
                if key not in staying and storage.nbytes() and storage.resizable():
                    copy = self._copy(key, storage) if copied else None
                    self._away[key] = (storage, copy, storage.nbytes())
        self._buffers = {key: copy for key, (_, copy, _) in self._away.items() if copy is not None}
        if _device_in_use():
            torch.cuda.synchronize()  # the copies are complete
        for storage, _, _ in self._away.values():
            storage.resize_(0)
        if _device_in_use():
            torch.cuda.empty_cache()  # other processes use the device too

    def fetch(self) -> None:
        """Fill all storages again."""
        if self._away:  # it seldom is, and a trainer asks before whatever it does
            self._fill()

    @torch.no_grad()
    def _fill(self) -> None:
        for storage, copy, size in self._away.values():
            storage.resize_(size)
            target = _as_bytes(storage)
            if copy is None:
                target.zero_()
            else:
                target.copy_(copy, non_blocking=True)
        self._away.clear()

    def _copy(self, key: int, storage: Bytes) -> Tensor:
        size = storage.nbytes()
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() != size:
            pinned = storage.device.type == "cuda"
            buffer = self._buffers[key] = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        return buffer.copy_(_as_bytes(storage), non_blocking=True)


def stored_bytes(tensors: Iterable[Tensor]) -> float:
    """What the tensors hold in this process, each storage once."""
    return float(sum(storage.nbytes() for storage in storages(tensors).values()))


def storages(tensors: Iterable[Tensor]) -> dict[int, Bytes]:
    """The distinct storages of these tensors by identity, of sharded ones this rank's part."""
    found = {}
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        found[storage._cdata] = storage
    return found


def lend(parameter: nn.Parameter, borrower: object) -> None:
    """Note that another object of this process uses the parameter's data, for as long as that lives."""
    parameter.borrower = weakref.ref(borrower)  # type: ignore[attr-defined]


def borrowed(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Those whose data somebody else uses too."""
    noted = [parameter for parameter in parameters if hasattr(parameter, "borrower")]
    return [parameter for parameter in noted if parameter.borrower() is not None]


def _device_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _as_bytes(storage: Bytes) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
