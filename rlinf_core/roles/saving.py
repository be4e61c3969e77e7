"""One rank's part of a checkpoint: taken at once, written by a thread, and listed when it is whole."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlinf_core.durable import durable_sums
from rlinf_core.errors import CheckpointError

if TYPE_CHECKING:
    from rlinf_core.api import Snapshot, Trainer

PROCESS = "process_{rank}.json"
WRITE_S = 1800.0  # that a checkpoint may take to be written


@dataclass(frozen=True)
class Staged:
    """What a rank has taken for a checkpoint."""

    size: int  # bytes; 0 = unknown
    algorithm: Mapping[str, Any]  # Any: JSON values


class Part:
    """What one rank writes below `folder`; `listing` names a file that comes to be when all is durable."""

    def __init__(self, trainer: Trainer, rank: int, *, background: bool) -> None:
        self._trainer = trainer
        self._rank = rank
        self._random = random_state()
        self._background = background
        self._snapshot: Snapshot | None = trainer.snapshot(apart=background)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def size(self) -> int:
        """Bytes that will be written; 0 = unknown."""
        return 0 if self._snapshot is None else self._snapshot.size

    def write(self, folder: Path, listing: Path) -> None:
        """Write, or begin to. Raises `CheckpointError`."""
        if self._snapshot is not None and self._background:
            self._thread = threading.Thread(
                target=self._run, args=(self._snapshot, folder, listing), name="checkpoint", daemon=True
            )
            self._thread.start()
            return
        self._write(self._snapshot, folder, listing)

    def check(self) -> None:
        """Raise what writing has failed by, if it has."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until all is written. Raises `CheckpointError`."""
        if self._thread is not None:
            self._thread.join(WRITE_S)
            if self._thread.is_alive():
                raise CheckpointError(f"the checkpoint was not written within {WRITE_S:.0f} s")
        self.check()

    def _run(self, snapshot: Snapshot, folder: Path, listing: Path) -> None:
        try:
            self._write(snapshot, folder, listing)
        except BaseException as err:  # the border of a thread: `check` and `finish` raise it
            self._error = err

    def _write(self, snapshot: Snapshot | None, folder: Path, listing: Path) -> None:
        try:
            written: list[Path] = []
            if snapshot is None:
                self._trainer.save(folder)
            else:
                folder.mkdir(parents=True, exist_ok=True)
                written += snapshot.write(folder)
            process = folder / PROCESS.format(rank=self._rank)
            process.write_text(json.dumps(self._random))
            _list(listing, [*written, process])
        except OSError as err:
            raise CheckpointError(f"cannot write the checkpoint {folder}: {err.strerror or err}") from err


def random_state() -> dict[str, Any]:  # Any: JSON values
    """The states of the generators of Python and numpy; those of torch are the trainer's."""
    kind, keys, *rest = cast("tuple[str, Any, int, int, float]", np.random.get_state(legacy=True))
    version, numbers, gauss = random.getstate()
    return {"python": [version, list(numbers), gauss], "numpy": [kind, keys.tolist(), *rest]}


def restore_random_state(folder: Path, rank: int) -> None:
    """Go on with the generators of a rank; one that did not exist keeps its own. Raises `CheckpointError`."""
    path = folder / PROCESS.format(rank=rank)
    if not path.exists():
        return
    try:
        set_random_state(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as err:
        raise CheckpointError(
            f"{path} holds no state of random generators ({err}); name another one"
        ) from err


def set_random_state(found: Mapping[str, Any]) -> None:  # Any: JSON values
    """Go on with what `random_state` has told."""
    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = found["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), *rest))


def _list(listing: Path, files: Sequence[Path]) -> None:
    """Names relative to the folder of the listing."""
    draft = listing.with_suffix(".draft")
    draft.write_text(json.dumps(durable_sums(listing.parent, files)))
    draft.replace(listing)
