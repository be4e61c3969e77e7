"""Tensors in safetensors files, one a rank: each holds the rank's shards and says where they belong.

The layout is that of safetensors (a JSON header, then the raw bytes), with the offsets of shards in the
header as torch's `HuggingFaceStorageReader` reads them. A rank may have several shards of one tensor; all but
the first are stored under its name with `#` and a number. Nothing that is read can run code.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlinf_core.errors import CheckpointError

NAME = "shard-{:05d}-of-{:05d}.safetensors"
FORMER = "*.distcp"  # files of checkpoints from before
PATTERN = "shard-*-of-*.safetensors"
OFFSETS = "DCP_SHARDING_INFO"  # torch's name for it
WHOLE = "rlinf"  # beside it: the shapes of the whole tensors, and how many files there are
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
AGAIN = "#"  # after the name of a tensor of which the file has a shard already
MOST_FILES = 1 << 17
Offsets = tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """The part of a tensor that a rank writes, or reads into."""

    name: str
    data: Tensor
    offsets: Offsets
    shape: Offsets  # of the whole tensor

    @property
    def key(self) -> tuple[int, str]:
        """By which shards are ordered in a file, so that each begins at a multiple of its item size."""
        return -self.data.element_size(), self.name


def header(shards: Sequence[Shard], ranks: int) -> bytes:
    """What a file begins with; the bytes of the shards follow in the same order."""
    entries: dict[str, Any] = {}
    offsets: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    start = 0
    for shard in shards:
        end = start + shard.data.nbytes
        key = f"{shard.name}{AGAIN}{counts[shard.name]}" if counts[shard.name] else shard.name
        counts[shard.name] += 1
        offsets[key] = {"saved_offsets": shard.offsets}
        entries[key] = {
            "dtype": DTYPES[shard.data.dtype],
            "shape": list(shard.data.shape),
            "data_offsets": [start, end],
        }
        start = end
    whole = {"files": ranks, "shapes": {shard.name: shard.shape for shard in shards}}
    known = {"format": "pt", OFFSETS: json.dumps(offsets), WHOLE: json.dumps(whole)}
    text = json.dumps({"__metadata__": known, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def as_bytes(tensor: Tensor) -> Tensor:
    """The same memory as a flat tensor of bytes; a copy where it is not contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def memory(data: Tensor) -> memoryview:
    """Of flat bytes on the CPU, valid while the tensor is. One that numpy has seen could not be offloaded."""
    return memoryview((ctypes.c_ubyte * data.numel()).from_address(data.data_ptr())).cast("B")


@dataclass(frozen=True)
class _Stored:
    file: Path
    key: str
    offsets: Offsets
    sizes: Offsets


class Reader:
    """The files of one checkpoint. Raises `CheckpointError` for what is missing or unreadable.

    with Reader(path) as reader:
        reader.read(shard)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes: dict[str, Offsets] = {}  # of whole tensors, by name
        self._stored: dict[str, list[_Stored]] = defaultdict(list)
        self._files: dict[Path, Any] = {}  # Any: open files of safetensors, which is not typed
        self._open = ExitStack()

    def __enter__(self) -> Reader:
        with ExitStack() as opened:
            files = sorted(self.path.glob(PATTERN))
            for file in files:
                try:
                    count = self._take_in(file, opened.enter_context(safe_open(file, "pt")))
                except (SafetensorError, OSError, ValueError, LookupError, TypeError) as err:
                    raise CheckpointError(f"{file} is no part of a checkpoint ({err}); name another") from err
                wanted = [NAME.format(rank + 1, count) for rank in range(min(count, MOST_FILES))]
                if wanted != [file.name for file in files]:
                    lacks = next((name for name in wanted if not (self.path / name).exists()), "nothing")
                    raise CheckpointError(
                        f"{self.path} holds {len(files)} of {count} files; it lacks {lacks}"
                    )
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self, shard: Shard) -> None:
        """Fill the shard's tensor from all that overlaps with it."""
        shape = self.shapes.get(shard.name)
        if shape != shard.shape:
            raise CheckpointError(
                f"{self.path} has {shard.name} of shape {shape}, and here it is {shard.shape}"
            )
        filled = 0
        for stored in self._stored[shard.name]:
            filled += self._copy(stored, shard)
        if filled != shard.data.numel():
            raise CheckpointError(
                f"{self.path} holds {filled} of {shard.data.numel()} numbers of {shard.name}"
            )

    def _take_in(self, file: Path, handle: Any) -> int:
        """Note what a file holds; returns of how many files it is one."""
        known: Mapping[str, str] = handle.metadata() or {}
        whole, offsets = json.loads(known[WHOLE]), json.loads(known[OFFSETS])
        for key in list(handle.keys()):
            name = key.partition(AGAIN)[0]
            start = tuple(map(int, offsets[key]["saved_offsets"]))
            sizes = tuple(handle.get_slice(key).get_shape())
            shape = tuple(map(int, whole["shapes"][name]))
            if len({len(start), len(sizes), len(shape)}) != 1 or self.shapes.setdefault(name, shape) != shape:
                raise ValueError(f"shard of {name} fits no tensor")
            self._stored[name].append(_Stored(file, key, start, sizes))
        self._files[file] = handle
        return int(whole["files"])

    def _copy(self, stored: _Stored, shard: Shard) -> int:
        bounds = list(_overlap(stored.offsets, stored.sizes, shard.offsets, tuple(shard.data.shape)))
        count = math.prod(max(0, end - start) for start, end in bounds)
        if not count:
            return 0
        handle = self._files[stored.file]
        if not bounds:  # a single number has no slices
            shard.data.copy_(handle.get_tensor(stored.key))
            return 1
        source = tuple(slice(a - o, b - o) for (a, b), o in zip(bounds, stored.offsets, strict=True))
        target = tuple(slice(a - o, b - o) for (a, b), o in zip(bounds, shard.offsets, strict=True))
        shard.data[target].copy_(handle.get_slice(stored.key)[source])
        return count


def read(shards: Iterable[Shard], path: Path, backend: str) -> None:
    """Fill shards from a checkpoint in place; every rank reads what it needs. Raises `CheckpointError`."""
    wanted = list(shards)
    with opened(path, backend) as reader:
        missing = sorted({shard.name for shard in wanted} - set(reader.shapes))
        if missing:
            raise CheckpointError(
                f"backend {backend}: the checkpoint {path} lacks {len(missing)} tensors, such as "
                f"{missing[0]!r}; it was made with another model or other lora settings"
            )
        try:
            for shard in wanted:
                reader.read(shard)
        except (SafetensorError, OSError, RuntimeError) as err:
            raise CheckpointError(f"backend {backend}: cannot load the checkpoint {path}: {err}") from err


def keys(path: Path, backend: str) -> set[str]:
    """The names in a checkpoint. Raises `CheckpointError`."""
    with opened(path, backend) as reader:
        return set(reader.shapes)


def opened(path: Path, backend: str) -> Reader:
    """Raises `CheckpointError` for a folder that has no shards."""
    if any(path.glob("shard-*")):
        return Reader(path)
    if any(path.glob(FORMER)):
        raise CheckpointError(
            f"backend {backend}: {path} was written by an earlier version, in a format that can run code "
            "when it is read; resume the run with that version, or start a new one from its export"
        )
    raise CheckpointError(
        f"backend {backend}: no readable checkpoint in {path} (no shards); name another one"
    )


def _overlap(
    offsets: Offsets, sizes: Offsets, other_offsets: Offsets, other_sizes: Offsets
) -> Iterator[tuple[int, int]]:
    for start, size, other, other_size in zip(offsets, sizes, other_offsets, other_sizes, strict=True):
        yield max(start, other), min(start + size, other + other_size)
