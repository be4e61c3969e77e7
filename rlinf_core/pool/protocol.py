"""What a pool and its processes say to each other: small framed messages, and settings as plain values.

A message is a kind, JSON, and bytes. Observations, actions and outcomes are not in it: they lie in shared
memory (`memory.py`). Both sides import this file, so it knows the standard library and nothing else.
"""

from __future__ import annotations

import importlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any

from rlinf_core.errors import ConfigError

VERSION = 1  # of everything in this file and in memory.py
STEP = struct.Struct("<IB")  # actions of the chunk, whether environments start again by themselves
DONE = struct.Struct("<BBB")  # whether there are instructions, which final observation, success by action
NONE, SAME, APART = range(3)  # the final observation: none, what is shown now, or another one
_HEADER = struct.Struct("<III")  # kind, bytes of JSON, bytes behind it
_AT_ONCE = 1 << 18  # bytes of one read


class Kind(IntEnum):
    """Of messages."""

    START = 1  # to the process: which simulator
    HELLO = 2  # from it: what the simulator shows and takes
    LAYOUT = 3  # to the process: how the shared memory is divided
    RESET = 4
    RESTART = 5
    STEP = 6
    DONE = 7  # from the process: the outcome lies in shared memory
    CALL = 8  # to the process: any other method
    ANSWER = 9
    ERROR = 10  # from the process, instead of any answer
    CLOSE = 11


@dataclass(frozen=True)
class Message:
    """One message, whole. Any: JSON values."""

    kind: Kind
    said: Any = None
    raw: bytes = b""


class Wire:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._read = bytearray()

    def send(self, kind: Kind, said: Any = None, raw: bytes = b"") -> None:  # Any: JSON values
        """Raises `OSError` if the other side is gone, or takes nothing for the socket's timeout."""
        text = b"" if said is None else json.dumps(said).encode()
        self.socket.sendall(_HEADER.pack(kind, len(text), len(raw)) + text + raw)

    def receive(self) -> Message:
        """Wait for the next message. Raises `EOFError` when the other side is gone."""
        while (message := self._whole()) is None:
            self._take(self.socket.recv(_AT_ONCE))
        return message

    def arrived(self) -> list[Message]:
        """The messages that are there. Raises `EOFError` when there is none and the other side is gone."""
        messages: list[Message] = []
        while True:
            while (message := self._whole()) is not None:
                messages.append(message)
            try:
                self._take(self.socket.recv(_AT_ONCE, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return messages
            except EOFError:
                if messages:  # what was said last counts; the end is told by the next call
                    return messages
                raise

    def _take(self, piece: bytes) -> None:
        if not piece:
            raise EOFError
        self._read += piece

    def _whole(self) -> Message | None:
        if len(self._read) < _HEADER.size:
            return None
        kind, text, raw = _HEADER.unpack_from(self._read)
        end = _HEADER.size + text + raw
        if len(self._read) < end:
            return None
        middle = _HEADER.size + text
        said = json.loads(self._read[_HEADER.size : middle]) if text else None
        message = Message(Kind(kind), said, bytes(self._read[middle:end]))
        del self._read[:end]
        return message


def encode(value: Any, key: str) -> Any:  # Any: values of settings, and JSON values
    """A value of settings as JSON that `decode` makes the same value of. Raises `ConfigError` for others."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [encode(item, f"{key}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        if not parts:  # a plugin without settings reads none
            return None
        named = {name: encode(part, f"{key}.{name}") for name, part in parts.items()}
        return {"dataclass": f"{cls.__module__}:{cls.__qualname__}", "fields": named}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"mapping": {name: encode(part, f"{key}.{name}") for name, part in value.items()}}
    raise ConfigError(
        f"{key}: a {type(value).__name__} cannot be told to another process; settings are numbers, texts, "
        "lists, mappings and dataclasses of them"
    )


def decode(value: Any) -> Any:  # Any: as for `encode`
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    if "mapping" in value:
        return {name: decode(part) for name, part in value["mapping"].items()}
    return find(value["dataclass"])(**{name: decode(part) for name, part in value["fields"].items()})


def find(target: str) -> Any:  # Any: a class
    """The class that `module:Class` names."""
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
