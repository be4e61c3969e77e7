"""Files that survive a crash of the machine, and the sums that prove them whole."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK = 1 << 24  # bytes; checksums of large blocks are computed in parallel


def make_durable(path: Path) -> str:
    """Have the content of a file on disk; returns its checksum."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
    return checksum(path)


def sync_directory(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def durable_sums(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, int | str]]:
    """Make files below the folder durable; by their names, their sizes and checksums."""
    ordered = sorted(files)
    with ThreadPoolExecutor() as pool:
        sums = list(pool.map(make_durable, ordered))
    return {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "crc32": found}
        for path, found in zip(ordered, sums, strict=True)
    }


def checksum(path: Path) -> str:
    """CRC-32 of the content."""
    total = 0
    with path.open("rb") as handle:
        while block := handle.read(BLOCK):
            total = zlib.crc32(block, total)
    return f"{total:08x}"
