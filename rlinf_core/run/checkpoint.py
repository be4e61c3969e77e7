"""Checkpoints of a run: written aside, made durable, renamed, and only then called the latest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.errors import CheckpointError, WorkerError
from rlinf_core.run.manifest import check_manifest, sync_directory, write_manifest

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
            write_manifest(draft)
            if final.exists():
                shutil.rmtree(final)
            os.replace(draft, final)
            self._point_to(final)
        except BaseException as err:
            shutil.rmtree(draft, ignore_errors=True)
            reason = _reason(err)
            if reason is None:
                raise
            raise CheckpointError(
                f"checkpoint of step {step} was not saved in {self.root}: {reason}; {self._last_good()}"
            ) from err
        self._prune(step)
        return final

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint, or None before the first one. Raises `CheckpointError`."""
        link = self.root / "latest"
        return self.open(link.resolve()) if link.exists() or link.is_symlink() else None

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, which is not opened."""
        link = self.root / "latest"
        return _number(link.readlink()) if link.is_symlink() else None

    def open(self, path: Path) -> Checkpoint:
        """Check a checkpoint directory against its manifest. Raises `CheckpointError`."""
        try:
            check_manifest(path)
            state = json.loads((path / STATE).read_text())
            return Checkpoint(step=int(state["step"]), path=path, state=state)
        except CheckpointError as err:
            raise CheckpointError(f"{err}; {self._others(path)}") from err
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as err:
            raise CheckpointError(
                f"{path} is not a complete checkpoint: {type(err).__name__}: {err}; {self._others(path)}"
            ) from err

    def _others(self, bad: Path) -> str:
        others = [path.name for path in self._steps() if path.name != bad.name]
        if not others:
            return "there is no other one, so start a new run"
        return f"continue from the one before by: ln -sfn {others[-1]} {self.root / 'latest'}"

    def _steps(self) -> list[Path]:
        return sorted(self.root.glob("step_*"), key=_number)

    def _point_to(self, target: Path) -> None:
        draft = self.root / ".latest"
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.name)
        os.replace(draft, self.root / "latest")
        sync_directory(self.root)

    def _prune(self, step: int) -> None:
        """Later steps are left alone: they are there if the run was set back to an earlier checkpoint."""
        until = [path for path in self._steps() if _number(path) <= step]
        for path in until[: -self.keep] if self.keep else []:
            shutil.rmtree(path)

    def _last_good(self) -> str:
        link = self.root / "latest"
        return f"the last good one is {link.resolve()}" if link.exists() else "there is no earlier one"


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _reason(err: BaseException) -> str | None:
    """Why a checkpoint could not be written, or None if the error is about something else."""
    cause = err.__cause__ if isinstance(err, WorkerError) else err
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return str(cause) if isinstance(cause, CheckpointError) else None
