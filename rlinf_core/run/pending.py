"""Rows that wait to be trained on, as a file of a checkpoint: JSON, and behind it the bytes of arrays.

Prompts are named by their place in the dataset. No code is run when such a file is read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import CheckpointError
from rlinf_core.flows.flow import Played
from rlinf_core.flows.parts import Open
from rlinf_core.roles.encoding import FindPrompt, told, untold
from rlinf_core.types import Begun, Experience, Request, Sample, Trajectory

_LENGTH = struct.Struct("<Q")
_KINDS: Mapping[str, type[Any]] = {
    "sample": Sample,
    "trajectory": Trajectory,
    "request": Request,
    "begun": Begun,
    "open": Open,
}


def write_rows(path: Path, made: Mapping[int, Played], opened: Mapping[int, Open] | None = None) -> None:
    """The rows of some steps, and the responses of others that have begun. Raises `OSError`."""
    arrays: list[NDArray[Any]] = []
    steps = {str(step): _played(played, arrays) for step, played in made.items()}
    begun = {str(step): told(each, arrays, _KINDS) for step, each in (opened or {}).items()}
    table = [(array.dtype.str, array.shape) for array in arrays]
    text = json.dumps({"steps": steps, "open": begun, "arrays": table}).encode()
    with path.open("wb") as handle:
        handle.write(_LENGTH.pack(len(text)))
        handle.write(text)
        for array in arrays:
            handle.write(np.ascontiguousarray(array).data)


def read_rows(path: Path, prompt: FindPrompt) -> tuple[dict[int, Played], dict[int, Open]]:
    """What `write_rows` wrote. Raises `CheckpointError` for a file that is something else."""
    try:
        data = path.read_bytes()
        start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        known = json.loads(data[_LENGTH.size : start])
        arrays = []
        for name, shape in known["arrays"]:
            dtype = np.dtype(name)
            count = int(np.prod(shape, dtype=np.int64))
            arrays.append(np.frombuffer(data, dtype, count, start).reshape(shape).copy())
            start += count * dtype.itemsize
        made = {int(step): _replayed(each, arrays, prompt) for step, each in known["steps"].items()}
        opened = {int(step): untold(each, arrays, _KINDS, prompt) for step, each in known["open"].items()}
        return made, opened
    except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError) as err:
        raise CheckpointError(
            f"{path} does not hold rows to train on: {type(err).__name__}: {err}; "
            "resume from another checkpoint"
        ) from err


def _played(played: Played, arrays: list[NDArray[Any]]) -> dict[str, Any]:
    place = {id(row): number for number, row in enumerate(played.rows)}
    return {
        "rows": [told(row, arrays, _KINDS) for row in played.rows],
        "kept": [place[id(row)] for row in played.kept],
        "metrics": played.metrics,
        "counts": played.counts,
    }


def _replayed(told: Mapping[str, Any], arrays: list[NDArray[Any]], prompt: FindPrompt) -> Played:
    rows: list[Experience] = [untold(row, arrays, _KINDS, prompt) for row in told["rows"]]
    return Played(rows, [rows[number] for number in told["kept"]], told["metrics"], told["counts"])
