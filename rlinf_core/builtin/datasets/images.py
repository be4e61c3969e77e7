"""Pictures that records name by path or hold as bytes; read when a row is asked for."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import DataError
from rlinf_core.optional import require

if TYPE_CHECKING:
    from rlinf_core.types import Picture


@dataclass(frozen=True)
class PictureFile:
    """One picture of a record: a file, or the bytes of one. `where` tells people which."""

    where: str
    path: Path | None = None
    data: bytes | None = None

    def read(self) -> Picture:
        """Red, green and blue `[H, W, 3]`. Raises `DataError` for what is no picture."""
        import numpy as np

        library: Any = require("PIL.Image", "pillow", "reading pictures")
        try:
            with library.open(io.BytesIO(self.data) if self.data is not None else self.path) as opened:
                return np.asarray(opened.convert("RGB"))
        except (OSError, ValueError, SyntaxError) as err:  # Pillow raises all three for broken files
            raise DataError(f"{self.where} is not a readable picture: {err}") from err

    def identity(self) -> str:
        """What a fingerprint is made of: the bytes, or name and length of the file."""
        if self.data is not None:
            return hashlib.sha256(self.data).hexdigest()
        return "" if self.path is None else f"{self.path.name} {self.path.stat().st_size}"


def pictures_of(record: Mapping[str, Any], key: str, folder: Path, where: str) -> tuple[PictureFile, ...]:
    """The pictures of a record. Raises `DataError` if the key or a file is not there."""
    if key not in record:
        there = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{where}: no key {key!r} (data.image_key); keys there: {there}")
    cell = record[key]
    several = isinstance(cell, Sequence) and not isinstance(cell, str | bytes)
    return tuple(_picture(value, key, folder, where) for value in (cell if several else [cell]))


def _picture(value: Any, key: str, folder: Path, where: str) -> PictureFile:  # Any: a cell of the user's data
    if isinstance(value, Mapping) and value.get("bytes"):  # how the `datasets` library stores pictures
        value = value["bytes"]
    elif isinstance(value, Mapping) and value.get("path"):
        value = value["path"]
    if isinstance(value, bytes):
        return PictureFile(f"{where}: {key!r} (data.image_key)", data=value)
    if not isinstance(value, str) or not value:
        raise DataError(
            f"{where}: {key!r} (data.image_key) must hold the path of a picture, several, or the bytes of "
            f"one, not {type(value).__name__ if value else repr(value)}"
        )
    path = folder / value
    if not path.is_file():
        raise DataError(
            f"{where}: the picture {value!r} of {key!r} (data.image_key) does not exist in "
            f"{folder.absolute()}; paths start at data.image_folder, or where the data lie"
        )
    return PictureFile(f"{where}: {path} ({key!r}, data.image_key)", path=path)
