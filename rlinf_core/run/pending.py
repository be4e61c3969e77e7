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
from rlinf_core.flows.parts import Open
from rlinf_core.types import Begun, Experience, Prompt, Request, Sample, Trajectory

_LENGTH = struct.Struct("<Q")
_KINDS: Mapping[str, type[Any]] = {
    "sample": Sample,
    "trajectory": Trajectory,
    "request": Request,
    "begun": Begun,
    "open": Open,
}
FindPrompt = Callable[[int], Prompt]


def write_rows(path: Path, made: Mapping[int, Played], opened: Mapping[int, Open] | None = None) -> None:
    """The rows of some steps, and the responses of others that have begun. Raises `OSError`."""
    arrays: list[NDArray[Any]] = []
    steps = {str(step): _played(played, arrays) for step, played in made.items()}
    begun = {str(step): _told(each, arrays) for step, each in (opened or {}).items()}
    table = [(array.dtype.str, array.shape) for array in arrays]
    told = json.dumps({"steps": steps, "open": begun, "arrays": table}).encode()
    with path.open("wb") as handle:
        handle.write(_LENGTH.pack(len(told)))
        handle.write(told)
        for array in arrays:
            handle.write(np.ascontiguousarray(array).data)


def read_rows(path: Path, prompt: FindPrompt) -> tuple[dict[int, Played], dict[int, Open]]:
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
        made = {int(step): _replayed(each, arrays, prompt) for step, each in told["steps"].items()}
        opened = {int(step): _value(each, arrays, prompt) for step, each in told["open"].items()}
        return made, opened
    except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError) as err:
        raise CheckpointError(
            f"{path} does not hold rows to train on: {type(err).__name__}: {err}; "
            "resume from another checkpoint"
        ) from err


def _played(played: Played, arrays: list[NDArray[Any]]) -> dict[str, Any]:
    place = {id(row): number for number, row in enumerate(played.rows)}
    return {
        "rows": [_told(row, arrays) for row in played.rows],
        "kept": [place[id(row)] for row in played.kept],
        "metrics": played.metrics,
        "counts": played.counts,
    }


def _replayed(told: Mapping[str, Any], arrays: list[NDArray[Any]], prompt: FindPrompt) -> Played:
    rows: list[Experience] = [_value(row, arrays, prompt) for row in told["rows"]]
    return Played(rows, [rows[number] for number in told["kept"]], told["metrics"], told["counts"])


def _told(value: Any, arrays: list[NDArray[Any]]) -> Any:  # Any: what a row holds, and JSON values
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, Prompt):
        return {"prompt": value.index}
    if isinstance(value, Mapping):
        return {"mapping": {name: _told(item, arrays) for name, item in value.items()}}
    if isinstance(value, list):
        return [_told(item, arrays) for item in value]
    for kind, cls in _KINDS.items():
        if type(value) is cls:
            return {kind: {item.name: _told(getattr(value, item.name), arrays) for item in fields(value)}}
    return value.item() if isinstance(value, np.generic) else value


def _value(told: Any, arrays: list[NDArray[Any]], prompt: FindPrompt) -> Any:  # Any: as for `_told`
    if isinstance(told, list):
        return [_value(item, arrays, prompt) for item in told]
    if not isinstance(told, dict):
        return told
    if "array" in told:
        return arrays[told["array"]]
    if "prompt" in told:
        return prompt(told["prompt"])
    ((kind, parts),) = told.items()
    found = {name: _value(item, arrays, prompt) for name, item in parts.items()}
    return found if kind == "mapping" else _KINDS[kind](**found)
