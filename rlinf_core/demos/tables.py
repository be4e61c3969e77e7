"""Columns of frames as Parquet files, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.demos.frames import Columns, is_picture
from rlinf_core.demos.layout import Features, parquet_metadata
from rlinf_core.errors import DataError
from rlinf_core.media.png import decode_picture, encode_png
from rlinf_core.optional import require


def write_table(path: Path, columns: Columns, features: Features) -> None:
    """The columns that `features` does not keep as videos."""
    arrow = require("pyarrow", "pyarrow", f"writing {path}")
    parquet = require("pyarrow.parquet", "pyarrow", f"writing {path}")
    kept = {name: column for name, column in columns.items() if features[name]["dtype"] != "video"}
    table = arrow.table({name: _arrow(arrow, column) for name, column in kept.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table.replace_schema_metadata(parquet_metadata(features)), path)


def _arrow(arrow: Any, column: NDArray[Any]) -> Any:  # Any: pyarrow's
    if is_picture(column):
        pictures = [
            {"bytes": encode_png(picture), "path": f"frame_{number:06d}.png"}
            for number, picture in enumerate(column)
        ]
        return arrow.array(pictures, arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())]))
    flat = arrow.array(np.ascontiguousarray(column).reshape(-1))
    length = column.size // len(column)
    return flat if length == 1 else arrow.FixedSizeListArray.from_arrays(flat, length)


class Table:
    """A Parquet file of a dataset, read whole. Raises `DataError`."""

    def __init__(self, path: Path, root: Path) -> None:
        if not path.is_file():
            raise DataError(f"dataset {root} is incomplete: {path.relative_to(root)} is missing")
        parquet = require("pyarrow.parquet", "pyarrow", f"reading {path}")
        try:
            self._table = parquet.ParquetFile(path).read()
        except (OSError, ValueError) as err:  # pyarrow's own errors derive from these
            raise DataError(f"{path} cannot be read as Parquet: {err}") from err
        self.path = path
        self.names: Sequence[str] = self._table.column_names
        self.length: int = self._table.num_rows

    def numbers(self, name: str) -> NDArray[Any]:
        """`[T]` or `[T, K]`."""
        column = self._column(name)
        found = column.to_numpy()
        try:
            return np.stack(found) if found.dtype == object else np.asarray(found)
        except ValueError as err:
            raise DataError(f"{self.path}: the column {name!r} has rows of unequal length") from err

    def values(self, name: str) -> list[Any]:  # Any: whatever the column holds
        """As Python's own."""
        values: list[Any] = self._column(name).to_pylist()
        return values

    def pictures(self, name: str, rows: Sequence[int], root: Path) -> NDArray[np.uint8]:
        """`[T, H, W, 3]` of these rows."""
        chosen = self._column(name).take(list(rows)).to_pylist()
        return np.stack([self._picture(name, value, root) for value in chosen])

    def _picture(self, name: str, value: Any, root: Path) -> NDArray[np.uint8]:
        content = value.get("bytes") if isinstance(value, dict) else None
        if content is None:
            file = root / str(value["path"]) if isinstance(value, dict) and value.get("path") else None
            if file is None or not file.is_file():
                raise DataError(f"{self.path}: a picture of {name!r} has no content, and no file {file}")
            content = file.read_bytes()
        return decode_picture(content, f"a picture of {name!r} in {self.path}")

    def _column(self, name: str) -> Any:
        if name not in self.names:
            raise DataError(f"{self.path} has no column {name!r}; it has {', '.join(self.names)}")
        return self._table.column(name)
