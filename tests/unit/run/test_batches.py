"""The rows of the last steps on disk: how many stay, what a failed step leaves, and what is no such batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlinf_core.comm.stream import Stream
from rlinf_core.errors import DataError, RlinfError, TrainingError
from rlinf_core.flows.learning import Taken
from rlinf_core.roles.batch_file import write_batch
from rlinf_core.run.batches import KeptBatches, read_step
from rlinf_core.run.replaying import fitted
from rlinf_core.schedule.plan import Assignment, Plan
from rlinf_core.testing.fakes import text_samples

PLAN = Plan({"rollout": Assignment((0, 3), chunk=8), "actor": Assignment((1, 2))})


def graph(taken: Taken | None) -> Any:
    return SimpleNamespace(flow=SimpleNamespace(learners=SimpleNamespace(taken=taken)), plan=PLAN)


def make_step(kept: KeptBatches, step: int, *, oldest: int | None = None) -> None:
    """One whose second row comes first."""
    taken = Taken()
    rows = [replace(row, group=step, replica=i) for i, row in enumerate(text_samples()[:2])]
    with kept.of(step, graph(taken)):
        taken.note(Stream.of([rows[1:], rows[:1]]), oldest).collect()
    assert taken.rows == []


def test_the_last_steps_stay_in_order_with_the_plan_of_then(tmp_path: Path) -> None:
    kept = KeptBatches(tmp_path, 2)
    for step in (8, 9, 10):
        make_step(kept, step, oldest=3)
    assert kept.steps() == [9, 10]
    found = kept.read(10)
    assert [(row.group, row.replica) for row in found.rows] == [(10, 0), (10, 1)]
    assert (found.oldest, found.plan, found.whole) == (3, PLAN, True)
    assert KeptBatches(tmp_path, 2, resumed=9).steps() == [9]
    assert KeptBatches(tmp_path, 2, resumed=-1).steps() == []


def test_nothing_is_written_where_nothing_is_to_be_kept(tmp_path: Path) -> None:
    with KeptBatches(tmp_path, 0).of(1, graph(None)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_fails_leaves_what_had_come(tmp_path: Path) -> None:
    kept, taken = KeptBatches(tmp_path, 2), Taken()

    def fail(step: int, rows: int) -> None:
        with kept.of(step, graph(taken)):
            if rows:
                taken.note(Stream.of([list(text_samples()[:rows])]), None).collect()
            raise TrainingError("broken")

    with pytest.raises(TrainingError):
        fail(4, rows=3)
    assert (len(kept.read(4).rows), kept.read(4).whole) == (3, False)
    with pytest.raises(TrainingError):
        fail(5, rows=0)
    assert kept.steps() == [4]


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "batches").write_text("in the way")
    with pytest.raises(RlinfError, match=r"cannot write .*batches/step_1"):
        make_step(KeptBatches(tmp_path, 2), 1)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"step": 3}, "has the rows of step 3, not of 4"),
        ({"part": "warm_start_4"}, "does not say which step"),
        ({}, "does not say which step"),
    ],
)
def test_rows_of_something_else_are_refused(tmp_path: Path, facts: Any, says: str) -> None:
    write_batch(tmp_path, text_samples()[:1], facts)
    with pytest.raises(DataError, match=says):
        read_step(tmp_path, 4)


def test_a_plan_fits_onto_fewer_devices_and_what_was_apart_stays_apart() -> None:
    assert fitted(PLAN, 4) is PLAN
    found = fitted(PLAN, 2).assignments
    assert (found["actor"].devices, found["rollout"].devices) == ((0, 1), (2, 5))
    found = fitted(PLAN, 1).assignments
    assert (found["actor"].devices, found["rollout"].chunk) == ((0,), 8)
    together = Plan({"rollout": Assignment((0, 1)), "actor": Assignment((0, 1))})
    assert fitted(together, 1).assignments["rollout"].devices == (0,)
