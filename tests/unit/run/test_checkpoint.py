"""Checkpoints survive whatever happens while one is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import CheckpointError
from rlinf_core.run.checkpoint import CheckpointStore
from rlinf_core.run.saving import score


def save(store: CheckpointStore, step: int, text: str, score: float | None = None) -> Path:
    draft = store.draft(step)
    (draft / "trainer").mkdir()
    (draft / "trainer" / "weights").write_text(text)
    return store.commit(step, draft, {"note": text, "score": score}, {})


def test_the_latest_checkpoint_is_the_one_saved_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    save(store, 1, "one")
    save(store, 2, "two")
    latest = store.latest()
    assert latest is not None
    assert (latest.step, latest.state["note"]) == (2, "two")
    assert (tmp_path / "latest" / "trainer" / "weights").read_text() == "two"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (9, 10, 11):
        save(store, step, str(step))
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_10", "step_11"]


def test_a_draft_left_by_a_kill_is_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    (tmp_path / ".draft-step_3").mkdir()
    (tmp_path / ".draft-step_3" / "junk").write_text("half")
    assert store.latest() is None
    save(store, 3, "whole")
    latest = store.latest()
    assert latest is not None
    assert not (latest.path / "junk").exists()


def test_a_truncated_file_is_damage_not_a_traceback(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    path = save(store, 1, "complete")
    (path / "trainer" / "weights").write_text("comp")
    with pytest.raises(CheckpointError, match=r"damaged: trainer/weights has 4 bytes, 8 were written"):
        store.latest()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    path = save(store, 1, "complete")
    (path / "trainer" / "weights").unlink()
    with pytest.raises(CheckpointError, match=r"trainer/weights is missing; there is no"):
        store.open(path)


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        CheckpointStore(tmp_path, keep=1).open(tmp_path / "step_1")


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1, "first")
    save(store, 1, "second")
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["note"] == "second"


def test_a_run_set_back_to_an_earlier_checkpoint_keeps_what_it_saves(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (20, 30):
        save(store, step, str(step))
    save(store, 25, "25")
    latest = store.latest()
    assert latest is not None
    assert latest.step == 25
    assert (tmp_path / "step_30").exists()


def test_a_latest_that_points_nowhere_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2):
        save(store, step, str(step))
    (tmp_path / "step_2").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"step_2 is not a complete checkpoint.*ln -sfn step_1"):
        store.latest()


def test_the_best_is_kept_beside_the_newest_and_the_later_one_of_two_equals(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    for step, reached in ((1, 0.25), (2, 0.75), (3, None), (4, 0.5), (5, 0.75), (6, 0.0)):
        save(store, step, str(step), reached)
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_5", "step_6"]
    assert (store.best_step(), store.latest_step()) == (5, 6)
    assert (tmp_path / "best" / "trainer" / "weights").read_text() == "5"


def test_a_resumed_run_knows_the_best_of_before(tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path, keep=1), 1, "one", 0.75)
    again = CheckpointStore(tmp_path, keep=1)
    save(again, 2, "two", 0.5)
    assert (again.best_step(), again.latest_step()) == (1, 2)


@pytest.mark.parametrize(
    ("metric", "metrics", "expected"),
    [
        ("eval/accuracy", {"eval/accuracy": 0.5}, 0.5),
        ("-kl", {"kl": 0.5}, -0.5),
        ("kl", {}, None),
        ("", {}, None),
    ],
)
def test_the_best_is_the_highest_or_with_a_minus_the_lowest(
    metric: str, metrics: dict[str, float], expected: float | None
) -> None:
    assert score(metric, metrics) == expected


def test_what_is_needed_and_what_is_free_is_told_before_anything_is_written(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1, "good")
    with pytest.raises(
        CheckpointError, match=r"it needs 1000000\.0 GB, and [\d.]+ [GM]B are free there"
    ) as short:
        store.draft(2, 10**15)
    said = str(store.failure(2, short.value))
    assert said.startswith(f"checkpoint of step 2 was not saved in {tmp_path}: it needs")
    assert said.endswith(f"the last good one is {tmp_path.resolve()}/step_1")


def test_a_checkpoint_that_another_was_replacing_when_the_run_was_killed_is_put_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1, "one").rename(tmp_path / ".replaced-step_1")
    store.tidy()
    latest = store.latest()
    assert latest is not None
    assert latest.state["note"] == "one"


CALLS = ("fsync", "replace")  # between any two of them a run may be killed


def _killed_at(store: CheckpointStore, call: int) -> bool:
    """Save step 2 in a process that dies at the so manieth call; whether it came to its end before."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = [call]

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return function(*args, **kwargs)

        return counted

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))
    save(store, 2, "two", 0.5)
    os._exit(0)


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "a step saved again"])
def test_a_kill_between_any_two_calls_leaves_a_whole_checkpoint_and_the_next_save_works(
    tmp_path: Path, again: bool
) -> None:
    """Fewer than sixteen calls make a save."""
    ends = []
    for call in range(16):
        root = tmp_path / str(call)
        store = CheckpointStore(root, keep=2)
        save(store, 1, "one", 0.25)
        if again:
            save(store, 2, "two before", 0.25)
        ends.append(_killed_at(store, call))
        store.tidy()
        latest = store.latest()
        assert latest is not None
        text = (latest.path / "trainer" / "weights").read_text()
        assert text in ({"two", "two before"} if again else {"one", "two"})
        assert text == "two" or not ends[-1]
        save(store, 3, "three")
        assert store.latest_step() == 3
        assert sorted(path.name for path in root.iterdir() if path.name.startswith(".")) == []
    assert ends == sorted(ends)
    assert 8 < ends.count(False) < 16
