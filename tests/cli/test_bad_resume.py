"""Runs that cannot go on: one clear line, exit code 2, and the run's folder is as it was."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def test_changed_settings_are_shown_side_by_side(rlinf: Any, saved: Any) -> None:
    before = saved.content()
    ended = rlinf("train", "--resume", saved.output, "optimizer.lr=0.5", "--seed=3")
    assert ended.code == 2
    assert set(ended.err.splitlines()[1:3]) == {"  seed: 0 -> 3", "  optimizer.lr: 1e-05 -> 0.5"}
    assert "--allow-changes" in ended.err
    assert saved.content() == before


def test_another_model_is_a_changed_setting(rlinf: Any, saved: Any) -> None:
    """Its key begins with the letters of `mode`, which may change."""
    ended = rlinf("train", "--resume", saved.output, "model.preset=tiny-qwen2", "mode=collocated")
    assert (ended.code, ended.err.splitlines()[1]) == (2, "  model.preset: 'char-llama' -> 'tiny-qwen2'")


def test_changed_settings_can_be_allowed_and_are_the_run_s_from_then_on(rlinf: Any, saved: Any) -> None:
    longer = ("train", "--resume", saved.output, "train.steps=3", "optimizer.lr=0.5", "--allow-changes")
    assert rlinf(*longer).code == 0
    assert saved.steps() == [0, 1, 2, 3]
    assert "lr: 0.5" in (saved.output / "config.yaml").read_text()


def test_a_resumed_run_stays_in_its_folder(refused: Any, saved: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert "drop --output" in refused("train", "--resume", saved.output, "--output", other)
    assert not other.exists()


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a folder of something else"])
def test_a_folder_that_is_no_run_cannot_be_resumed(refused: Any, tmp_path: Path, there: str) -> None:
    folder = tmp_path / "notes"
    if there != "nothing":
        folder.mkdir()
    if there == "a folder of something else":
        (folder / "todo.txt").write_text("buy milk")
    assert "there is no run here" in refused("train", "--resume", folder)


def test_changed_data_is_shown_and_can_be_allowed(rlinf: Any, saved: Any) -> None:
    before, rows = saved.content(), saved.data.read_text()
    saved.data.write_text(rows.replace('"answer": "8"', '"answer": "9"'))
    longer = ("train", "--resume", saved.output, "train.steps=3")
    ended = rlinf(*longer)
    assert ended.code == 2
    assert re.search(
        r"^  data \(train\): 1\d rows, fingerprint \w+ -> 1\d rows, fingerprint \w+$", ended.err, re.M
    )
    assert "--allow-changes" in ended.err
    assert saved.content() == before
    saved.data.write_text(rows)
    assert rlinf(*longer).code == 0
    assert saved.steps() == [0, 1, 2, 3]
    saved.data.write_text(rows.replace('"answer": "8"', '"answer": "9"'))
    assert rlinf("train", "--resume", saved.output, "train.steps=4", "--allow-changes").code == 0
    assert saved.steps() == [0, 1, 2, 3, 4]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def spoil(file: Path) -> None:
    file.write_bytes(b"\x80\x04\x95" + b"\xff" * (file.stat().st_size - 3))


@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        (
            "actor/shard-00001-of-00001.safetensors",
            cut,
            "is damaged: actor/shard-00001-of-00001.safetensors has",
        ),
        (
            "actor/shard-00001-of-00001.safetensors",
            os.remove,
            "is damaged: actor/shard-00001-of-00001.safetensors is missing",
        ),
        (
            "actor/shard-00001-of-00001.safetensors",
            spoil,
            "is damaged: the content of actor/shard-00001-of-00001.safetensors",
        ),
        ("actor/process_0.json", spoil, "is damaged: the content of actor/process_0.json"),
        ("state.json", cut, "is damaged: state.json has"),
        ("manifest.json", os.remove, "is not a complete checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_offered(
    refused: Any, saved: Any, name: str, harm: Callable[[Path], None], says: str
) -> None:
    harm(saved.output / "checkpoints" / "latest" / name)
    before = saved.content()
    said = refused("train", "--resume", saved.output, "train.steps=3")
    assert says in said
    assert f"ln -sfn step_1 {saved.output}/checkpoints/latest" in said
    assert saved.content() == before


def test_a_run_goes_on_from_the_checkpoint_offered(refused: Any, rlinf: Any, saved: Any) -> None:
    cut(saved.trainer("shard-00001-of-00001.safetensors"))
    said = refused("train", "--resume", saved.output, "train.steps=3")
    subprocess.run(shlex.split(said.partition("by: ")[2]), check=True)
    assert rlinf("train", "--resume", saved.output, "train.steps=3").code == 0
    assert saved.steps() == [0, 1, 2, 3]
    assert (saved.output / "checkpoints" / "latest").readlink() == Path("step_3")


def test_a_checkpoint_of_another_model_is_refused(refused: Any, saved: Any) -> None:
    before = saved.content()
    larger = ("model.preset=tiny-llama", "--allow-changes")
    said = refused("train", "--resume", saved.output, "train.steps=3", *larger)
    assert "checkpoint" in said
    assert "step_2" in said
    assert saved.content() == before


def test_a_checkpoint_of_another_backend_is_refused_with_the_way_out(refused: Any, saved: Any) -> None:
    state, manifest = (saved.output / "checkpoints/latest" / name for name in ("state.json", "manifest.json"))
    state.write_text(state.read_text().replace('"backend": "fsdp"', '"backend": "other"'))
    listed = json.loads(manifest.read_text())
    del listed["files"]["state.json"]
    manifest.write_text(json.dumps(listed))
    before = saved.content()
    said = refused("train", "--resume", saved.output, "train.steps=3")
    assert "was written by backend 'other', and each reads its own; this run names 'fsdp'" in said
    assert f"rlinf export {saved.output} --output DIR" in said
    assert saved.content() == before


@pytest.mark.parametrize("key", ["source", "algorithm", "first_eval", "ranks", "backend"])
@pytest.mark.parametrize("value", [None, "nothing"])
def test_a_state_of_another_make_is_refused_in_one_line(
    refused: Any, rlinf: Any, saved: Any, key: str, value: str | None
) -> None:
    folder = saved.output / "checkpoints" / "latest"
    state = json.loads((folder / "state.json").read_text())
    if value is None:
        del state[key]
    else:
        state[key] = value
    (folder / "state.json").write_text(json.dumps(state))
    listed = json.loads((folder / "manifest.json").read_text())
    del listed["files"]["state.json"]
    (folder / "manifest.json").write_text(json.dumps(listed))
    ended = rlinf("train", "--resume", saved.output, "train.steps=3")
    if key == "ranks" and value:
        assert "written by nothing ranks" in ended.out
    else:
        assert ended.code in (1, 2)
        assert "step_2" in ended.err
        assert ended.err.count("\n") == 1


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """What a full disk does, for files that would grow beyond the size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_last_good_checkpoint(refused: Any, rlinf: Any, saved: Any) -> None:
    good = saved.content()
    with files_limited_to(100_000):
        said = refused("train", "--resume", saved.output, "train.steps=3")
    assert "checkpoint of step 3 was not saved" in said
    assert f"the last good one is {saved.output.resolve()}/checkpoints/step_2" in said
    kept = {name: text for name, text in saved.content().items() if name.startswith("checkpoints")}
    assert kept == {name: text for name, text in good.items() if name.startswith("checkpoints")}
    assert rlinf("train", "--resume", saved.output, "train.steps=3").code == 0
    assert saved.steps() == [0, 1, 2, 3]


def test_a_disk_full_at_a_metric_is_told(refused: Any, saved: Any) -> None:
    metrics = saved.output / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + json.dumps({"step": 2, "note": "x" * 20_000}) + "\n")
    with files_limited_to(metrics.stat().st_size):
        said = refused("train", "--resume", saved.output, "train.steps=3")
    assert said.startswith(f"cannot write {metrics}: File too large")
    assert "free some space and resume the run" in said


def test_a_disk_full_at_the_export_leaves_the_former_one(refused: Any, saved: Any) -> None:
    before = saved.content()
    with files_limited_to(100_000):
        said = refused("train", "--resume", saved.output)
    assert said.startswith("cannot write the exported model")
    assert saved.content() == before


def test_something_in_the_way_of_the_export_is_not_removed(refused: Any, saved: Any) -> None:
    shutil.rmtree(saved.output / "export")
    (saved.output / "export").write_text("in the way")
    said = refused("train", "--resume", saved.output, "train.steps=3")
    assert f"cannot write {saved.output}/export" in said
    assert (saved.output / "export").read_text() == "in the way"
    assert (saved.output / "checkpoints" / "latest").readlink() == Path("step_3")
