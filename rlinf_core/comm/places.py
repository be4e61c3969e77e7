"""Tensors in memory that processes share: where they lie, views of them, and fast copies."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from rlinf_core.api.backend import WeightBucket

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ALIGNED = 64  # bytes, of tensors
_POPULATE_WRITE = 23  # of madvise, from Linux 5.14 on
_PLAIN_FROM = 64 * 1024  # bytes from which numpy's copy, which is the C library's, is the faster one


@dataclass(frozen=True)
class Place:
    """Where a tensor lies."""

    name: str
    dtype: str  # such as "bfloat16"
    shape: tuple[int, ...]
    begin: int


@dataclass(frozen=True)
class Extent:
    """A part of a slot that is mapped as one, most of which holds nothing yet."""

    board: str  # different for every sender
    process: int
    descriptor: int  # there
    begin: int
    size: int
    number: int = 0  # different for files that had the same descriptor


@dataclass(frozen=True)
class Region:
    """A part of an extent."""

    extent: Extent
    begin: int
    size: int


def map_extent(descriptor: int, extent: Extent) -> mmap.mmap:
    """Its memory, which costs nothing before it is touched."""
    return mmap.mmap(descriptor, extent.size, flags=mmap.MAP_SHARED, offset=extent.begin)


def touch(memory: mmap.mmap, region: Region) -> None:
    """Have the system map a region at once, where it can, and not page by page as it is used."""
    with contextlib.suppress(OSError):
        memory.madvise(_POPULATE_WRITE, region.begin, region.size)


def arranged(tensors: Mapping[str, Tensor], dtype: str = "", begin: int = 0) -> tuple[list[Place], int]:
    """Places for these tensors one behind the other, floats in `dtype`, and where they end."""
    import torch

    places = []
    for name, tensor in tensors.items():
        kind: torch.dtype = tensor.dtype
        if dtype and tensor.is_floating_point():
            kind = getattr(torch, dtype)
        places.append(Place(name, str(kind).removeprefix("torch."), tuple(tensor.shape), begin))
        begin = -(-(begin + kind.itemsize * tensor.numel()) // _ALIGNED) * _ALIGNED
    return places, begin


def cast_bucket(bucket: WeightBucket, dtype: str) -> WeightBucket:
    """The bucket, floats as `dtype` ("" = as they are)."""
    import torch

    if not dtype:
        return bucket
    kind: torch.dtype = getattr(torch, dtype)
    tensors = {
        name: tensor.detach().to(kind) if tensor.is_floating_point() and tensor.dtype != kind else tensor
        for name, tensor in bucket.tensors.items()
    }
    return WeightBucket(bucket.version, tensors, bucket.last)


def common_dtype(tensors: Iterable[Tensor]) -> str:
    """The dtype of all floats; "" where there is more than one."""
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return str(kinds.pop()).removeprefix("torch.") if len(kinds) == 1 else ""


def view(memory: mmap.mmap, place: Place, begin: int = 0) -> Tensor:
    """The tensor at a place of what begins there."""
    import torch

    kind: torch.dtype = getattr(torch, place.dtype)
    count = prod(place.shape)
    if not count:
        return torch.empty(place.shape, dtype=kind)
    found = torch.frombuffer(memory, dtype=kind, count=count, offset=begin + place.begin)
    return found.reshape(place.shape)


def copy_into(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)`, at the speed of memory where nothing else is to be done."""
    import torch

    same = target.dtype == source.dtype and target.shape == source.shape
    on_host = target.device.type == source.device.type == "cpu"
    if same and on_host and target.nbytes >= _PLAIN_FROM and plain(target) and plain(source):
        octets(target)[:] = octets(source)
    else:
        with torch.no_grad():
            target.copy_(source)


def octets(tensor: Tensor) -> Any:  # Any: numpy's stubs
    """The bytes of a contiguous tensor in host memory as an array, uncopied."""
    import torch

    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def checksum(tensor: Tensor) -> int:
    """The sum of its 64-bit words, and of the bytes left over."""
    import numpy as np

    bits = octets(tensor)
    words = len(bits) // 8 * 8
    return (int(bits[:words].view(np.uint64).sum()) + int(bits[words:].sum())) % 2**64


def plain(tensor: Tensor) -> bool:
    import torch

    kind = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return kind and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
