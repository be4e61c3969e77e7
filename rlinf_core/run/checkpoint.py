"""Checkpoints of a run: written aside, made durable, renamed, and only then called the latest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.errors import CheckpointError

MANIFEST = "manifest.json"
STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    path: Path
    state: dict[str, Any]  # JSON: data position, algorithm state, dataset fingerprint...


class CheckpointStore:
    """`ROOT/step_N/` directories and the link `ROOT/latest`."""

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self.keep = keep

    def save(self, step: int, write: Callable[[Path], dict[str, Any]]) -> Path:
        """Let `write` fill a directory and return the state to store beside; make it the latest.

        Whatever goes wrong before the end leaves the former latest as it was. Raises
        `CheckpointError` when the disk is full or cannot be written.
        """
        final = self.root / f"step_{step}"
        draft = self.root / f".draft-step_{step}"
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            state = write(draft)
            (draft / STATE).write_text(json.dumps({"step": step, **state}, indent=1))
            _write_manifest(draft)
            if final.exists():
                shutil.rmtree(final)
            os.replace(draft, final)
            self._point_to(final)
        except (OSError, CheckpointError) as err:
            shutil.rmtree(draft, ignore_errors=True)
            reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
            raise CheckpointError(
                f"checkpoint of step {step} was not saved in {self.root}: {reason}; {self._last_good()}"
            ) from err
        self._prune()
        return final

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint, or None before the first one."""
        link = self.root / "latest"
        return self.open(link.resolve()) if link.exists() else None

    def open(self, path: Path) -> Checkpoint:
        """Check a checkpoint directory against its manifest. Raises `CheckpointError`."""
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            state = json.loads((path / STATE).read_text())
        except (OSError, ValueError) as err:
            raise CheckpointError(f"{path} is not a complete checkpoint: {err}") from err
        for name, size in manifest["files"].items():
            file = path / name
            found = file.stat().st_size if file.exists() else None
            if found != size:
                raise CheckpointError(
                    f"checkpoint {path} is damaged: {name} has {found} bytes, {size} were written"
                )
        return Checkpoint(step=int(state["step"]), path=path, state=state)

    def _point_to(self, target: Path) -> None:
        draft = self.root / ".latest"
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.name)
        os.replace(draft, self.root / "latest")
        _sync_directory(self.root)

    def _prune(self) -> None:
        kept = sorted(self.root.glob("step_*"), key=lambda path: int(path.name[5:]))
        for path in kept[: -self.keep] if self.keep else []:
            shutil.rmtree(path)

    def _last_good(self) -> str:
        link = self.root / "latest"
        return f"the last good one is {link.resolve()}" if link.exists() else "there is no earlier one"


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = {}
    for path in files:
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
        sizes[str(path.relative_to(folder))] = path.stat().st_size
    with (folder / MANIFEST).open("w") as handle:
        json.dump({"files": sizes}, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    _sync_directory(folder)


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
