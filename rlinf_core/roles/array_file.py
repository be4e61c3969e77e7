"""Arrays in a safetensors file (a JSON header, then raw bytes), written and read with numpy alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct("<Q")
_NAMES = {
    "b1": "BOOL",
    **{f"{letter}{size}": f"{letter.upper()}{8 * size}" for letter in "iu" for size in (1, 2, 4, 8)},
    **{f"f{size}": f"F{8 * size}" for size in (2, 4, 8)},
}
_TYPES = {name: np.dtype(f"<{kind}") for kind, name in _NAMES.items()}


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raises `TypeError` for an array that holds no numbers, and `OSError`."""
    header: dict[str, Any] = {}  # Any: JSON values
    start = 0
    for name, array in arrays.items():
        kind = _NAMES.get(array.dtype.str[1:])
        if kind is None:
            raise TypeError(f"{name} holds {array.dtype}, which is no number that a safetensors file knows")
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(_LENGTH.pack(len(text)) + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """What `write_arrays` wrote. Raises `ValueError`, `LookupError`, `TypeError` or `struct.error` for
    another file, and `OSError`."""
    data = path.read_bytes()
    (size,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + size
    header = json.loads(data[_LENGTH.size : begin])
    found = {}
    for name, entry in header.items():
        kind, (start, end) = _TYPES[entry["dtype"]], entry["data_offsets"]
        array = np.frombuffer(data, kind, (end - start) // kind.itemsize, begin + start)
        found[name] = array.reshape(entry["shape"]).copy()
    return found
