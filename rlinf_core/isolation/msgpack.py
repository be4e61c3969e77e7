"""The part of MessagePack that messages between environments use, so that none of them has to hold a package.

As its specification (msgpack.org, version 5) says: nil, booleans, integers, doubles, texts, bytes, lists and
maps; no extension types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_FLOAT = struct.Struct(">Bd")
_UNSIGNED = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_SIGNED = {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LENGTHS = {  # format byte -> size of the length, and what has it
    **{0xD9 + i: (1 << i, "text") for i in range(3)},
    **{0xC4 + i: (1 << i, "bytes") for i in range(3)},
    **{0xDC + i: (2 << i, "list") for i in range(2)},
    **{0xDE + i: (2 << i, "map") for i in range(2)},
}


def pack(value: Any) -> bytes:  # Any: values of the types named above; a tuple becomes a list
    """Raises `TypeError` for a value of another type, `OverflowError` for an integer beyond 64 bits."""
    out = bytearray()
    _write(out, value)
    return bytes(out)


def unpack(data: bytes | bytearray | memoryview) -> Any:  # Any: as for `pack`
    """The value that `pack` was given. Raises `ValueError` for what is not one whole value."""
    reader = _Reader(memoryview(data))
    value = reader.value()
    if reader.at != len(reader.data):
        raise ValueError(f"{len(reader.data) - reader.at} bytes behind a MessagePack value")
    return value


def _write(out: bytearray, value: Any) -> None:
    if value is None or isinstance(value, bool):
        out.append({None: 0xC0, False: 0xC2, True: 0xC3}[value])
    elif isinstance(value, int):
        _write_integer(out, int(value))
    elif isinstance(value, float):
        out += _FLOAT.pack(0xCB, value)
    elif isinstance(value, str):
        text = value.encode()
        _write_length(out, len(text), (0xA0, 32), (0xD9, 0xDA, 0xDB))
        out += text
    elif isinstance(value, bytes | bytearray | memoryview):
        _write_length(out, len(value), None, (0xC4, 0xC5, 0xC6))
        out += value
    elif isinstance(value, list | tuple):
        _write_length(out, len(value), (0x90, 16), (None, 0xDC, 0xDD))
        for item in value:
            _write(out, item)
    elif isinstance(value, dict):
        _write_length(out, len(value), (0x80, 16), (None, 0xDE, 0xDF))
        for key, item in value.items():
            _write(out, key)
            _write(out, item)
    else:
        raise TypeError(f"a {type(value).__name__} cannot be told to another process")


def _write_integer(out: bytearray, value: int) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    for code, kind in (_UNSIGNED if value >= 0 else _SIGNED).items():
        bits = 8 * struct.calcsize(kind)
        if value < 1 << bits if value >= 0 else value >= -(1 << (bits - 1)):
            out.append(code)
            out += struct.pack(kind, value)
            return
    raise OverflowError(f"{value} does not fit 64 bits")


def _write_length(
    out: bytearray, length: int, short: tuple[int, int] | None, codes: tuple[int | None, int, int]
) -> None:
    """`short` is the code that lengths below a limit are added to; `codes` are those of 1, 2 and 4 bytes."""
    if short is not None and length < short[1]:
        out.append(short[0] | length)
        return
    for code, size in zip(codes, (1, 2, 4), strict=True):
        if code is not None and length < 1 << 8 * size:
            out.append(code)
            out += length.to_bytes(size, "big")
            return
    raise OverflowError(f"{length} is too long for MessagePack")


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def value(self) -> Any:
        code = self._take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code < 0xC0:
            kind, mask = ("map", 0xF) if code < 0x90 else ("list", 0xF) if code < 0xA0 else ("text", 0x1F)
            return self._sized(kind, code & mask)
        if code in _LENGTHS:
            size, kind = _LENGTHS[code]
            return self._sized(kind, int.from_bytes(self._take(size), "big"))
        return self._scalar(code)

    def _scalar(self, code: int) -> Any:
        if code in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[code]
        kind = {**_UNSIGNED, **_SIGNED, 0xCA: ">f", 0xCB: ">d"}.get(code)
        if kind is None:
            raise ValueError(f"MessagePack type {code:#x} is not used here")
        return struct.unpack(kind, self._take(struct.calcsize(kind)))[0]

    def _sized(self, kind: str, length: int) -> Any:
        read: dict[str, Callable[[], Any]] = {
            "text": lambda: bytes(self._take(length)).decode(),
            "bytes": lambda: bytes(self._take(length)),
            "list": lambda: [self.value() for _ in range(length)],
            "map": lambda: {self.value(): self.value() for _ in range(length)},
        }
        return read[kind]()

    def _take(self, size: int) -> memoryview:
        piece = self.data[self.at : self.at + size]
        if len(piece) < size:
            raise ValueError("a MessagePack value ends too early")
        self.at += size
        return piece
