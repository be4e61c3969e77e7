"""Checkpoints of a run: written aside, made durable, renamed, and only then called the latest."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.durable import sync_directory
from rlinf_core.errors import CheckpointError, WorkerError
from rlinf_core.run.manifest import Listed, check_manifest, read_manifest, write_manifest

STATE = "state.json"
LATEST = "latest"
BEST = "best"
SCORE = "score"  # in the state, of a checkpoint that may be the best
DRAFT = ".draft-"
REPLACED = ".replaced-"
ROOM = 1 << 20  # bytes beside those of the workers


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    step: int
    path: Path
    state: dict[str, Any]  # JSON: data position, algorithm state, dataset fingerprint...


class CheckpointStore:
    """`ROOT/step_N/` directories, the link `ROOT/latest`, and `ROOT/best` where checkpoints have a score."""

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self.keep = keep

    def tidy(self) -> None:
        """Clear away what a run that was killed had begun to write, and put back what it was replacing."""
        for old in self.root.glob(f"{REPLACED}step_*"):
            former = self.root / old.name.removeprefix(REPLACED)
            shutil.rmtree(old) if former.exists() else old.rename(former)
        for draft in self.root.glob(f"{DRAFT}step_*"):
            shutil.rmtree(draft)
        for name in (LATEST, BEST):
            (self.root / f".{name}").unlink(missing_ok=True)

    def draft(self, step: int, size: int = 0) -> Path:
        """An empty folder to write the checkpoint of a step into. Raises `CheckpointError` where so many
        bytes are not free, and `OSError`."""
        draft = self.root / f"{DRAFT}step_{step}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        free, needed = shutil.disk_usage(draft).free, (size or self._latest_size()) + ROOM
        if free < needed:
            raise CheckpointError(
                f"it needs {_amount(needed)}, and {_amount(free)} are free there; free some space, or keep "
                "fewer (checkpoint.keep), and resume the run"
            )
        return draft

    def commit(self, step: int, draft: Path, state: Mapping[str, Any], known: Listed) -> Path:
        """Make a draft whose files are whole the latest checkpoint; `known` are those that are durable, with
        their sums. Whatever goes wrong leaves the former latest as it was."""
        final = self.root / f"step_{step}"
        (draft / STATE).write_text(json.dumps({"step": step, **state}, indent=1))
        write_manifest(draft, known)
        aside = self.root / f"{REPLACED}{final.name}"
        if final.exists():
            os.replace(final, aside)
        os.replace(draft, final)
        sync_directory(self.root)
        shutil.rmtree(aside, ignore_errors=True)
        self._point(LATEST, final)
        self._judge(final, state.get(SCORE))
        self._prune(step)
        return final

    def drop(self, step: int) -> None:
        """Forget the draft of a step."""
        shutil.rmtree(self.root / f"{DRAFT}step_{step}", ignore_errors=True)

    def failure(self, step: int, err: BaseException) -> BaseException:
        """The error to raise for a checkpoint that was not saved; `err` itself if it is about something
        else."""
        reason = _reason(err)
        if reason is None:
            return err
        return CheckpointError(
            f"checkpoint of step {step} was not saved in {self.root}: {reason}; {self._last_good()}"
        )

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint, or None before the first one. Raises `CheckpointError`."""
        link = self.root / LATEST
        return self.open(link.resolve()) if link.exists() or link.is_symlink() else None

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints."""
        return [_number(path) for path in self._steps()]

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, which is not opened."""
        return self._linked(LATEST)

    def best_step(self) -> int | None:
        """The step of the checkpoint with the best score."""
        return self._linked(BEST)

    def open(self, path: Path) -> Checkpoint:
        """Check a checkpoint directory against its manifest. Raises `CheckpointError`."""
        try:
            check_manifest(path)
            state = json.loads((path / STATE).read_text())
            return Checkpoint(step=int(state["step"]), path=path, state=state)
        except CheckpointError as err:
            raise CheckpointError(f"{err}; {self._others(path)}") from err
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as err:
            raise CheckpointError(
                f"{path} is not a complete checkpoint: {type(err).__name__}: {err}; {self._others(path)}"
            ) from err

    def _linked(self, name: str) -> int | None:
        link = self.root / name
        return _number(link.readlink()) if link.is_symlink() else None

    def _others(self, bad: Path) -> str:
        others = [path.name for path in self._steps() if path.name != bad.name]
        if not others:
            return "there is no other one, so start a new run"
        return f"continue from the one before by: ln -sfn {others[-1]} {self.root / LATEST}"

    def _steps(self) -> list[Path]:
        return sorted((path for path in self.root.glob("step_*") if _number(path) >= 0), key=_number)

    def _latest_size(self) -> int:
        """What the checkpoint before took, where a worker cannot say what the next one will."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            listed = read_manifest(self.root / LATEST)
            return sum(int(written["bytes"]) for written in listed.values())
        return 0

    def _point(self, name: str, target: Path) -> None:
        draft = self.root / f".{name}"
        draft.unlink(missing_ok=True)
        draft.symlink_to(target.name)
        os.replace(draft, self.root / name)
        sync_directory(self.root)

    def _judge(self, final: Path, score: float | None) -> None:
        """A score as good as the best one is better: it was reached with more training."""
        best = self._best_score()
        if score is not None and (best is None or score >= best):
            self._point(BEST, final)

    def _best_score(self) -> float | None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return float(json.loads((self.root / BEST / STATE).read_text())[SCORE])
        return None

    def _prune(self, step: int) -> None:
        """Later steps are left alone: they are there if the run was set back to an earlier checkpoint."""
        best = self.root / BEST
        spared = best.readlink().name if best.is_symlink() else ""
        until = [path for path in self._steps() if _number(path) <= step]
        for path in until[: -self.keep] if self.keep else []:
            if path.name != spared:
                shutil.rmtree(path)

    def _last_good(self) -> str:
        link = self.root / LATEST
        return f"the last good one is {link.resolve()}" if link.exists() else "there is no earlier one"


def _number(path: Path) -> int:
    """The step of a checkpoint's folder; -1 for a folder of another name."""
    digits = path.name.removeprefix("step_")
    return int(digits) if digits.isdecimal() else -1


def _amount(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _reason(err: BaseException) -> str | None:
    """Why a checkpoint could not be written, or None if the error is about something else."""
    cause = err.__cause__ if isinstance(err, WorkerError) else err
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return str(cause) if isinstance(cause, CheckpointError) else None
