"""Parameters that other processes see where they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.comm.places import Extent, Place, Region, plain

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_LIVE_FROM = 2**20  # bytes of a storage
_MOST_LIVE = 64  # storages, each of which costs a descriptor at both ends
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - shared memory, which has this name


class LiveParameters:
    """Their storages are moved into shared memory, once; whatever views them stays valid."""

    def __init__(self, board: str) -> None:
        self._board = board
        self._made = 0
        self._known: dict[int, tuple[torch.UntypedStorage, Region]] = {}
        self._names: dict[str, int] = {}  # where each was shown last

    def show(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Region, Place]]:
        """Those that can be shown, and where they lie."""
        import torch

        found = {}
        for name, tensor in tensors.items():
            if type(tensor) is torch.nn.Parameter and tensor.device.type == "cpu" and plain(tensor):
                region = self._region(tensor.untyped_storage())
                if region is not None:
                    begin = int(tensor.storage_offset()) * tensor.element_size()
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    self._names[name] = tensor.untyped_storage()._cdata
                    found[name] = region, Place(name, dtype, tuple(tensor.shape), begin)
        return found

    def settle(self) -> None:
        """A version is complete: forget what no longer holds anything that was shown."""
        held = set(self._names.values())
        self._known = {key: each for key, each in self._known.items() if key in held}

    def _region(self, storage: torch.UntypedStorage) -> Region | None:
        key = storage._cdata
        if key not in self._known:
            if len(self._known) >= _MOST_LIVE or not _can_move(storage):
                return None
            descriptor, size = storage._share_fd_cpu_()
            self._made += 1
            extent = Extent(self._board, os.getpid(), descriptor, 0, size, self._made)
            self._known[key] = storage, Region(extent, 0, size)
        return self._known[key][1]


def _can_move(storage: torch.UntypedStorage) -> bool:
    """Whether it is worth a file, and there is room for it."""
    import torch

    size = storage.nbytes()
    if size < _LIVE_FROM or storage.is_shared() or not _SHARED_MEMORY.is_dir():
        return False
    strategy: str = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy != "file_descriptor":
        return False
    return shutil.disk_usage(_SHARED_MEMORY).free > 2 * size
