"""Rows that wait to be trained on, as a file of a checkpoint: JSON, and behind it the bytes of arrays.

Prompts are named by their place in the dataset. No code is run when such a file is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import CheckpointError
from rlinf_core.flows.flow import Played
from rlinf_core.types import Experience, Prompt, Sample, Trajectory

_LENGTH = struct.Struct("<Q")
_KINDS: Mapping[str, type[Experience]] = {"sample": Sample, "trajectory": Trajectory}
FindPrompt = Callable[[int], Prompt]


def write_rows(path: Path, made: Mapping[int, Played]) -> None:
    """The rows of some steps. Raises `OSError`."""
    arrays: list[NDArray[Any]] = []
    steps = {str(step): _played(played, arrays) for step, played in made.items()}
    table = [(array.dtype.str, array.shape) for array in arrays]
    told = json.dumps({"steps": steps, "arrays": table}).encode()
    with path.open("wb") as handle:
        handle.write(_LENGTH.pack(len(told)))
        handle.write(told)
        for array in arrays:
            handle.write(np.ascontiguousarray(array).data)


def read_rows(path: Path, prompt: FindPrompt) -> dict[int, Played]:
    """What `write_rows` wrote. Raises `CheckpointError` for a file that is something else."""
    try:
        data = path.read_bytes()
        start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        told = json.loads(data[_LENGTH.size : start])
        arrays = []
        for name, shape in told["arrays"]:
            dtype = np.dtype(name)
            count = int(np.prod(shape, dtype=np.int64))
            arrays.append(np.frombuffer(data, dtype, count, start).reshape(shape).copy())
            start += count * dtype.itemsize
        return {int(step): _replayed(each, arrays, prompt) for step, each in told["steps"].items()}
    except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError) as err:
        raise CheckpointError(
            f"{path} does not hold rows to train on: {type(err).__name__}: {err}; "
            "resume from another checkpoint"
        ) from err


def _played(played: Played, arrays: list[NDArray[Any]]) -> dict[str, Any]:
    place = {id(row): number for number, row in enumerate(played.rows)}
    return {
        "rows": [_row(row, arrays) for row in played.rows],
        "kept": [place[id(row)] for row in played.kept],
        "metrics": played.metrics,
        "counts": played.counts,
    }


def _replayed(told: Mapping[str, Any], arrays: list[NDArray[Any]], prompt: FindPrompt) -> Played:
    rows = []
    for kind, parts in told["rows"]:
        rows.append(_KINDS[kind](**{name: _value(part, arrays, prompt) for name, part in parts.items()}))
    return Played(rows, [rows[number] for number in told["kept"]], told["metrics"], told["counts"])


def _row(row: Experience, arrays: list[NDArray[Any]]) -> tuple[str, dict[str, Any]]:
    kind = next(name for name, cls in _KINDS.items() if type(row) is cls)
    return kind, {item.name: _told(getattr(row, item.name), arrays) for item in fields(row)}


def _told(value: Any, arrays: list[NDArray[Any]]) -> Any:  # Any: what a row holds, and JSON values
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, Prompt):
        return {"prompt": value.index}
    if isinstance(value, Mapping):
        return {"mapping": {name: _told(item, arrays) for name, item in value.items()}}
    return value.item() if isinstance(value, np.generic) else value


def _value(told: Any, arrays: list[NDArray[Any]], prompt: FindPrompt) -> Any:  # Any: as for `_told`
    if not isinstance(told, dict):
        return told
    if "array" in told:
        return arrays[told["array"]]
    if "prompt" in told:
        return prompt(told["prompt"])
    return {name: _value(item, arrays, prompt) for name, item in told["mapping"].items()}
