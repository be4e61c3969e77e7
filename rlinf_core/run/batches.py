"""The rows of a run's last steps, kept in its folder so that their updates can be made again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import DataError
from rlinf_core.roles.batch_file import read_batch, write_batch
from rlinf_core.run.output import BATCHES, writing
from rlinf_core.schedule.plan_yaml import plan_from_yaml, plan_to_yaml

if TYPE_CHECKING:
    from rlinf_core.flows.learning import Taken
    from rlinf_core.run.compose import RunGraph
    from rlinf_core.schedule.plan import Plan
    from rlinf_core.types import Experience

_DRAFT = ".draft-"


@dataclass(frozen=True)
class StepBatch:
    """What a step trained on. Steps are numbered from 1, as in `metrics.jsonl`."""

    step: int
    rows: list[Experience]
    oldest: int | None = None  # rows of weights before this version were not trained
    plan: Plan | None = None  # by which the run worked then; None = it was not written down
    whole: bool = True  # nothing is missing


class KeptBatches:
    """`RUN/batches/step_N/` of the last `keep` steps; a resumed run drops those that it makes again."""

    def __init__(self, output: Path, keep: int, resumed: int | None = None) -> None:
        self.root = output / BATCHES
        self.keep = keep
        for step in self.steps():
            if resumed is not None and step > resumed:
                shutil.rmtree(self._folder(step))

    def steps(self) -> list[int]:
        """Those that are there."""
        names = (path.name.removeprefix("step_") for path in self.root.glob("step_*"))
        return sorted(int(name) for name in names if name.isdecimal())

    @contextmanager
    def of(self, step: int, graph: RunGraph) -> Iterator[None]:
        """Within the block the flow of `graph` makes a step; what it trained on is kept afterwards, also
        where training fails. Raises `RlinfError` when it cannot be written."""
        taken = graph.flow.learners.taken
        if taken is None:
            yield
            return
        taken.rows = []
        try:
            yield
        except Exception:
            if taken.rows:
                self._write(step, taken, graph.plan, whole=False)
            raise
        self._write(step, taken, graph.plan, whole=True)
        taken.rows = []

    def read(self, step: int) -> StepBatch:
        """Raises `DataError`."""
        return read_step(self._folder(step), step)

    def _folder(self, step: int) -> Path:
        return self.root / f"step_{step}"

    def _write(self, step: int, taken: Taken, plan: Plan, *, whole: bool) -> None:
        rows = sorted(taken.rows, key=lambda row: (row.group, row.replica))
        facts = {"step": step, "oldest": taken.oldest, "plan": plan_to_yaml(plan), "whole": whole}
        folder, draft = self._folder(step), self.root / f"{_DRAFT}step_{step}"
        with writing(folder):
            shutil.rmtree(draft, ignore_errors=True)
            write_batch(draft, rows, facts)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        for old in self.steps()[: -self.keep]:
            shutil.rmtree(self._folder(old))


def read_step(folder: Path, step: int) -> StepBatch:
    """A kept batch, or the rows of an update that was left out (`RUN/not-finite`). Raises `DataError`."""
    batch = read_batch(folder)
    facts = batch.facts
    try:
        found = _number(facts)
        plan = plan_from_yaml(facts["plan"], origin=str(folder)) if "plan" in facts else None
        left = bool(facts.get("rows_too_large_to_keep", 0))
        whole = bool(facts.get("whole", True)) and not left
        oldest = facts.get("oldest")
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        raise DataError(f"{folder} does not say which step its rows are of ({err}); name another") from err
    if found != step:
        raise DataError(f"{folder} has the rows of step {found}, not of {step}; name that step")
    return StepBatch(step, batch.rows, None if oldest is None else int(oldest), plan, whole)


def _number(facts: Any) -> int:  # Any: JSON values
    part = facts.get("part", "")
    return int(facts["step"]) if "step" in facts else int(str(part).removeprefix("step_"))
