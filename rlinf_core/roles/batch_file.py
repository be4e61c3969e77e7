"""The rows of an optimizer step in a folder, to be looked at and trained again: arrays and JSON, no code."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import DataError
from rlinf_core.roles.array_file import read_arrays, write_arrays
from rlinf_core.roles.encoding import told, untold
from rlinf_core.types import Experience, Prompt, Sample, Trajectory

FACTS = "batch.json"
ARRAYS = "rows.safetensors"
_KINDS = {"sample": Sample, "trajectory": Trajectory, "prompt": Prompt}


@dataclass(frozen=True)
class Batch:
    """What a folder holds: rows, and facts of their optimizer step."""

    rows: list[Experience]
    facts: Mapping[str, Any]  # Any: JSON values


def write_batch(folder: Path, rows: Sequence[Experience], facts: Mapping[str, Any]) -> None:
    """Raises `OSError`, and `TypeError` for rows that hold something that JSON does not know."""
    arrays: list[NDArray[Any]] = []
    known = [told(row, arrays, _KINDS) for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(folder / ARRAYS, {str(number): array for number, array in enumerate(arrays)})
    text = json.dumps({**facts, "rows": known}, default=_plain, indent=1)
    (folder / FACTS).write_text(text)


def read_batch(folder: Path | str) -> Batch:
    """What `write_batch` wrote. Raises `DataError`.

    batch = read_batch("runs/mine/not-finite/step_7")
    batch.rows[batch.facts["rows_with_such_a_loss"][0]].text
    """
    folder = Path(folder)
    try:
        arrays = read_arrays(folder / ARRAYS)
        facts = json.loads((folder / FACTS).read_text())
        ordered = [arrays[str(number)] for number in range(len(arrays))]
        rows: list[Experience] = [untold(row, ordered, _KINDS) for row in facts.pop("rows")]
        return Batch(rows, facts)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as err:
        raise DataError(
            f"{folder} holds no batch ({type(err).__name__}: {err}); name a folder with {FACTS} and {ARRAYS}"
        ) from err


def array_bytes(rows: Iterable[Experience]) -> int:
    """Of the arrays of rows."""
    total = 0
    for row in rows:
        for value in vars(row).values():
            held = value.values() if isinstance(value, Mapping) else (value,)
            total += sum(each.nbytes for each in held if isinstance(each, np.ndarray))
    return total


def _plain(value: Any) -> Any:  # Any: numpy values and whatever an answer holds
    return value.tolist() if hasattr(value, "tolist") else str(value)
