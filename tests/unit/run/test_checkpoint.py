"""Checkpoints survive whatever happens while one is written."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import CheckpointError
from rlinf_core.run.checkpoint import CheckpointStore


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
