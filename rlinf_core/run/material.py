"""What a run has kept of a step: rows, a state from before it, and what came out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.errors import CheckpointError, DataError
from rlinf_core.roles.guard import FOLDER as NOT_FINITE
from rlinf_core.run.batches import KeptBatches, StepBatch, read_step
from rlinf_core.run.checkpoint import Checkpoint, CheckpointStore
from rlinf_core.run.output import CHECKPOINTS, METRICS

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig


@dataclass(frozen=True)
class Material:
    """What a run has of a step: where to begin, and the rows from there on; the last are of the step."""

    run: Path
    start: Checkpoint | None  # None = the beginning of the run
    batches: Sequence[StepBatch]
    end: Checkpoint | None  # what the run was after the step, where that was saved

    @property
    def step(self) -> int:
        """That is made again; the first one of a run is 1."""
        return self.batches[-1].step

    @property
    def whole(self) -> bool:
        """No rows are missing."""
        return all(batch.whole for batch in self.batches)

    @property
    def first(self) -> int:
        """The step that is made again first."""
        return self.batches[0].step


def find_material(config: RunConfig, step: int, folder: Path | None = None) -> Material:
    """Of a run with these settings; with a folder the rows of the step are those in it. Raises `DataError` or
    `CheckpointError` that says what is missing, and which setting keeps it."""
    run = Path(config.output)
    kept = KeptBatches(run, config.checkpoint.keep_batches)
    store = CheckpointStore(run / CHECKPOINTS, keep=0)
    rows = read_step(folder, step) if folder else _rows_of(kept, step, run)
    start = _start_of(store, step, warm=config.warm_start.steps > 0)
    there = store.steps()
    missing = sorted(set(range(start + 1, step)) - set(kept.steps()))
    if missing:
        state = f"checkpoint step_{start}" if start in there else "the run's beginning"
        raise CheckpointError(
            f"step {step}: the nearest state before it is {state}, so that {_listed(missing)} would "
            f"have to be made again first, whose rows {run} does not have. A run has checkpoints of more "
            "steps by checkpoint.every=1 and checkpoint.keep, rows of more by "
            f"checkpoint.keep_batches={step - start} or more"
        )
    between = [kept.read(number) for number in range(start + 1, step)]
    return Material(
        run,
        store.open(store.root / f"step_{start}") if start in there else None,
        [*between, rows],
        store.open(store.root / f"step_{step}") if step in there else None,
    )


def recorded(run: Path, step: int) -> dict[str, float]:
    """What the run wrote down of a step; nothing if it did not come to its end."""
    path = run / METRICS
    lines = path.read_text().splitlines() if path.exists() else []
    for line in reversed(lines):
        with contextlib.suppress(json.JSONDecodeError):  # of a run that died while it wrote it
            record: dict[str, float] = json.loads(line)
            if record["step"] == step:
                return record
    return {}


def _rows_of(kept: KeptBatches, step: int, run: Path) -> StepBatch:
    there = kept.steps()
    if step in there:
        return kept.read(step)
    dumped = sorted((run / NOT_FINITE).glob(f"step_{step}-*"))
    if dumped:
        raise DataError(f"step {step}: its rows are in {dumped[0]} alone; name them by --batch {dumped[0]}")
    have = f"rows of {_listed(there)}" if there else "rows of none"
    raise DataError(
        f"step {step}: {run} has {have}; a run keeps those of its last N steps by checkpoint.keep_batches=N"
    )


def _start_of(store: CheckpointStore, step: int, *, warm: bool) -> int:
    """The newest state at or before the beginning of the step, as the steps that were made until then."""
    before = [number for number in store.steps() if number < step]
    beginning = [] if warm else [0]  # from the settings and the seed
    found = max([*before, *beginning], default=None)
    if found is None:
        there = ", ".join(f"step_{number}" for number in store.steps()) or "none"
        raise CheckpointError(
            f"step {step}: no checkpoint in {store.root} was written before it, and the run's beginning "
            f"follows from a warm start; there are {there}. checkpoint.every=1 writes one after each step, "
            "checkpoint.keep says how many stay"
        )
    return found


def _listed(steps: Sequence[int]) -> str:
    """`step 3`, or `steps 3, 4`; long lists are cut."""
    shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
    return f"step {shown}" if len(steps) == 1 else f"steps {shown}"
