"""The list of a checkpoint's files with their sizes and checksums: what proves it whole."""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlinf_core.errors import CheckpointError

MANIFEST = "manifest.json"
BLOCK = 1 << 24  # bytes; checksums of large blocks are computed in parallel


def write_manifest(folder: Path) -> None:
    """Make every file below the folder durable and list it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor() as pool:
        sums = list(pool.map(_durable_sum, files))
    listed = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "crc32": found}
        for path, found in zip(files, sums, strict=True)
    }
    with (folder / MANIFEST).open("w") as handle:
        json.dump({"files": listed}, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    sync_directory(folder)


def check_manifest(folder: Path) -> None:
    """Raises `CheckpointError` that names the first file that is not as it was written, and `OSError`,
    `ValueError`, `LookupError`, `TypeError` or `AttributeError` if the list itself is not."""
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    for name, written in listed.items():
        size = (folder / name).stat().st_size if (folder / name).exists() else None
        if size is None:
            raise CheckpointError(f"checkpoint {folder} is damaged: {name} is missing")
        if size != written["bytes"]:
            raise CheckpointError(
                f"checkpoint {folder} is damaged: {name} has {size} bytes, {written['bytes']} were written"
            )
    with ThreadPoolExecutor() as pool:
        sums = list(pool.map(lambda name: _sum(folder / name), listed))
    for name, found in zip(listed, sums, strict=True):
        if found != listed[name]["crc32"]:
            raise CheckpointError(
                f"checkpoint {folder} is damaged: the content of {name} is not what was written"
            )


def sync_directory(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _durable_sum(path: Path) -> str:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
    return _sum(path)


def _sum(path: Path) -> str:
    total = 0
    with path.open("rb") as handle:
        while block := handle.read(BLOCK):
            total = zlib.crc32(block, total)
    return f"{total:08x}"
