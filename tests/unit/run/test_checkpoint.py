"""Checkpoints survive whatever happens while one is written."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import CheckpointError
from rlinf_core.run.checkpoint import CheckpointStore


def writer(text: str) -> Any:
    def write(folder: Path) -> dict[str, Any]:
        (folder / "trainer").mkdir()
        (folder / "trainer" / "weights").write_text(text)
        return {"note": text}

    return write


def test_the_latest_checkpoint_is_the_one_saved_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    store.save(1, writer("one"))
    store.save(2, writer("two"))
    latest = store.latest()
    assert latest is not None
    assert (latest.step, latest.state["note"]) == (2, "two")
    assert (tmp_path / "latest" / "trainer" / "weights").read_text() == "two"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (9, 10, 11):
        store.save(step, writer(str(step)))
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_10", "step_11"]


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, writer("good"))

    def full(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"No space left on device; the last good one is .*step_1"):
        store.save(2, full)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    assert not list(tmp_path.glob(".draft*"))


def test_a_draft_left_by_a_kill_is_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    (tmp_path / ".draft-step_3").mkdir()
    (tmp_path / ".draft-step_3" / "junk").write_text("half")
    assert store.latest() is None
    store.save(3, writer("whole"))
    latest = store.latest()
    assert latest is not None
    assert not (latest.path / "junk").exists()


def test_a_truncated_file_is_damage_not_a_traceback(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    path = store.save(1, writer("complete"))
    (path / "trainer" / "weights").write_text("comp")
    with pytest.raises(CheckpointError, match=r"damaged: trainer/weights has 4 bytes, 8 were written"):
        store.latest()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    path = store.save(1, writer("complete"))
    (path / "trainer" / "weights").unlink()
    with pytest.raises(CheckpointError, match=r"trainer/weights is missing; there is no"):
        store.open(path)


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step_1").mkdir()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        CheckpointStore(tmp_path, keep=1).open(tmp_path / "step_1")


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, writer("first"))
    store.save(1, writer("second"))
    assert json.loads((tmp_path / "latest" / "state.json").read_text())["note"] == "second"


def test_a_run_set_back_to_an_earlier_checkpoint_keeps_what_it_saves(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (20, 30):
        store.save(step, writer(str(step)))
    store.save(25, writer("25"))
    latest = store.latest()
    assert latest is not None
    assert latest.step == 25
    assert (tmp_path / "step_30").exists()


def test_a_latest_that_points_nowhere_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2):
        store.save(step, writer(str(step)))
    (tmp_path / "step_2").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"step_2 is not a complete checkpoint.*ln -sfn step_1"):
        store.latest()
