"""Content as bytes: a table of part sizes, the pickle stream, and the buffers that it refers to."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_core.comm.leases import Ref
from rlinf_core.comm.segments import Segment
from rlinf_core.comm.tensors import dispatch_table

MOST_OUTSIDE = 32  # arrays of one message that may lie in segments of their own
_OUTSIDE_FROM = 1024  # bytes below which a copy is cheaper than looking
_OUTSIDE = 2**64 - 1  # instead of a size
_ALIGN = 64
_SIZE = struct.Struct("<Q")
_PADDING = bytes(_ALIGN)
Find = Callable[[memoryview], tuple[Segment, int] | None]


@dataclass(frozen=True)
class Packed:
    """Content ready to be sent, any number of times; `outside` lies in shared memory already."""

    pieces: Sequence[Any]  # Any: bytes-like
    parts: int
    size: int
    outside: Sequence[tuple[Segment, Ref]] = ()


def pack(content: Any, note: bytes | None = None, *, find: Find | None = None) -> Packed:
    """Pickle the content with its arrays and tensors left out of the stream, uncopied.

    A note is some bytes that can be read without unpickling the content. `find` tells which arrays lie in
    shared memory already; those stay out of the pieces.
    """
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = dispatch_table()
    pickler.dump(content)
    parts = [stream.getbuffer()]
    sizes = [parts[0].nbytes]
    outside: list[tuple[Segment, Ref]] = []
    for buffer in buffers:
        raw = buffer.raw()
        found = find(raw) if find and raw.nbytes >= _OUTSIDE_FROM and len(outside) < MOST_OUTSIDE else None
        if found is None:
            parts.append(raw)
        else:
            outside.append((found[0], found[0].ref(found[1], raw.nbytes)))
        sizes.append(_OUTSIDE if found else raw.nbytes)
    if note is not None:
        parts.append(memoryview(note))
        sizes.append(len(note))
    return _laid_out(parts, sizes, outside)


def _laid_out(
    parts: Sequence[memoryview], sizes: Sequence[int], outside: Sequence[tuple[Segment, Ref]]
) -> Packed:
    table = b"".join(map(_SIZE.pack, sizes))
    pieces: list[Any] = []
    size = 0
    for piece in (memoryview(table), *parts):
        gap = _aligned(piece.nbytes) - piece.nbytes
        pieces += [piece, _PADDING[:gap]] if gap else [piece]
        size += piece.nbytes + gap
    return Packed(pieces, len(sizes), size, outside)


def unpack(body: memoryview, parts: int, outside: Iterable[memoryview] = ()) -> Any:
    """The content; its arrays and tensors are views of the body, and of what lies outside."""
    stream, *buffers = cut(body, parts, outside)
    return pickle.loads(stream, buffers=buffers)  # noqa: S301 - from a process of this run, which has shown its token


def cut(body: memoryview, parts: int, outside: Iterable[memoryview] = ()) -> list[memoryview]:
    """The parts of a packed body."""
    sizes = [_SIZE.unpack_from(body, i * _SIZE.size)[0] for i in range(parts)]
    at = _aligned(parts * _SIZE.size)
    others = iter(outside)
    pieces = []
    for size in sizes:
        if size == _OUTSIDE:
            pieces.append(next(others))
        else:
            pieces.append(body[at : at + size])
            at += _aligned(size)
    return pieces


def _aligned(size: int) -> int:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN
