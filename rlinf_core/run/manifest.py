"""The list of a checkpoint's files with their sizes and checksums: what proves it whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlinf_core.durable import checksum, durable_sums, sync_directory
from rlinf_core.errors import CheckpointError

MANIFEST = "manifest.json"
Listed = Mapping[str, Mapping[str, int | str]]  # by name, what was written


def write_manifest(folder: Path, known: Listed) -> None:
    """Make every file below the folder durable and list it; those in `known` are durable already."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    rest = durable_sums(folder, (path for path in files if str(path.relative_to(folder)) not in known))
    with (folder / MANIFEST).open("w") as handle:
        json.dump({"files": dict(sorted({**known, **rest}.items()))}, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    for inner in sorted({path.parent for path in files} - {folder}):
        sync_directory(inner)
    sync_directory(folder)


def read_manifest(folder: Path) -> Listed:
    """What was written into the folder. Raises as `check_manifest` does for a list that is none."""
    listed: Listed = json.loads((folder / MANIFEST).read_text())["files"]
    return listed


def check_manifest(folder: Path) -> None:
    """Raises `CheckpointError` that names the first file that is not as it was written, and `OSError`,
    `ValueError`, `LookupError`, `TypeError` or `AttributeError` if the list itself is not."""
    listed = read_manifest(folder)
    for name, written in listed.items():
        size = (folder / name).stat().st_size if (folder / name).exists() else None
        if size is None:
            raise CheckpointError(f"checkpoint {folder} is damaged: {name} is missing")
        if size != written["bytes"]:
            raise CheckpointError(
                f"checkpoint {folder} is damaged: {name} has {size} bytes, {written['bytes']} were written"
            )
    with ThreadPoolExecutor() as pool:
        sums = list(pool.map(lambda name: checksum(folder / name), listed))
    for name, found in zip(listed, sums, strict=True):
        if found != listed[name]["crc32"]:
            raise CheckpointError(
                f"checkpoint {folder} is damaged: the content of {name} is not what was written"
            )
