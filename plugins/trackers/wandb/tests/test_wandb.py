"""What the tracker leaves offline, read back from W&B's own files."""

from __future__ import annotations

import importlib
import json
import math
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlinf_tracker_wandb.config import WandbConfig
from rlinf_tracker_wandb.tracker import Wandb

from rlinf_core.errors import ConfigError
from rlinf_core.media.png import encode_png

SETTINGS = {"seed": 7, "algo": {"name": "a", "clip": [0.2, 0.28]}, "reward": None}
BLOCK, HEADER = 32768, 7  # of the log format that the file has
FULL, FIRST, MIDDLE, LAST = range(1, 5)


def chunks(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each piece of the log, whose checksums are right."""
    place = HEADER  # the file starts with a header of its own
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        checksum, length, kind = struct.unpack("<IHB", content[place : place + HEADER])
        piece = content[place + HEADER : place + HEADER + length]
        assert zlib.crc32(piece, zlib.crc32(bytes([kind]))) == checksum
        yield kind, piece
        place += HEADER + length


def records(file: Path) -> list[Any]:
    record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    found, begun = [], b""
    for kind, piece in chunks(file.read_bytes()):
        begun = piece if kind in (FULL, FIRST) else begun + piece
        if kind in (FULL, LAST):
            found.append(record.FromString(begun))
    return found


def runs(output: Path) -> list[list[Any]]:
    return [records(file) for file in sorted((output / "wandb").glob("offline-run-*/*.wandb"))]


def history(found: list[Any]) -> dict[int, dict[str, Any]]:
    """Steps with what was logged for each."""
    steps = {}
    for record in found:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            line = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
            steps[int(line["_step"])] = line
    return steps


def only(found: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]


def logged(output: Path, resumed_step: int, steps: tuple[int, ...], error: Exception | None = None) -> None:
    tracker = Wandb(WandbConfig(project="p", tags=("x", "y")))
    tracker.start(output, SETTINGS, resumed_step)
    for step in steps:
        tracker.log(step, {"train/loss": 1.0 / step, "eval/odd": math.nan})
        tracker.log_samples(
            step, [{"step": step, "prompt": "p", "answer": [1, 2]}, {"step": step, "kl": 0.5}]
        )
    still = output / "still.png"
    still.write_bytes(encode_png(np.full((4, 6, 3), 9, np.uint8)))
    (output / "film.mp4").write_bytes(b"film")
    tracker.log_picture(steps[-1], "videos/eval-0", still)
    tracker.log_video(steps[-1], "videos/eval-0", output / "film.mp4")
    tracker.finish(error)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run of three steps that was resumed after its second and then failed."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    folder.mkdir()
    logged(folder, 0, (1, 2, 3))
    logged(folder, 2, (3, 4), ValueError("no more"))
    return folder


def test_metrics_are_there_by_step(output: Path) -> None:
    first, _ = (history(found) for found in runs(output))
    assert [(step, line["train/loss"]) for step, line in first.items()] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert math.isnan(float(first[1]["eval/odd"]))


def test_settings_project_and_name_are_there(output: Path) -> None:
    (run, *_) = only(runs(output)[0], "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.display_name, list(run.tags)) == ("p", "mine", ["x", "y"])
    assert {name: config[name] for name in SETTINGS} == SETTINGS


def test_samples_are_a_table_of_their_step(output: Path) -> None:
    told = history(runs(output)[0])[2]["samples/path"]
    (file,) = (output / "wandb").glob(f"offline-run-*/files/{told}")
    table = json.loads(file.read_text())
    assert table["columns"] == ["step", "prompt", "answer", "kl"]
    assert table["data"] == [[2, "p", "[1, 2]", None], [2, None, None, 0.5]]


def test_pictures_and_videos_are_copied(output: Path) -> None:
    line = history(runs(output)[0])[3]
    assert (line["videos/eval-0/width"], line["videos/eval-0/height"]) == (6, 4)
    picture, video = (line[f"videos/{name}/path"] for name in ("eval-0", "eval-0-mp4"))
    (copy,) = (output / "wandb").glob(f"*/files/{picture}")
    assert copy.read_bytes() == (output / "still.png").read_bytes()
    (copy,) = (output / "wandb").glob(f"*/files/{video}")
    assert copy.read_bytes() == b"film"


def test_nothing_is_left_outside_of_the_folder_of_the_run(output: Path) -> None:
    staged = [
        entry.local_path
        for found in runs(output)
        for artifact in only(found, "artifact")
        for entry in artifact.manifest.contents
    ]
    assert len(staged) == 5
    assert {Path(path).is_relative_to(output) for path in staged} == {True}
    assert "WANDB_DATA_DIR" not in os.environ


def test_a_resumed_run_goes_on_under_its_id_and_says_how_it_ended(output: Path) -> None:
    first, second = runs(output)
    kept = (output / "wandb" / "rlinf-run-id").read_text()
    assert {run.run_id for found in (first, second) for run in only(found, "run")} == {kept}
    assert list(history(second)) == [3, 4]
    assert [only(found, "exit")[-1].exit_code for found in (first, second)] == [0, 1]
    told = [item for record in only(second, "summary") for item in record.update if item.key == "error"]
    assert json.loads(told[-1].value_json) == "ValueError: no more"


def test_nothing_of_the_machine_is_recorded_unless_asked(output: Path) -> None:
    assert [only(found, "stats") for found in runs(output)] == [[], []]
    names = {file.name for file in (output / "wandb").glob("*/files/*")}
    assert names & {"requirements.txt", "wandb-metadata.json", "output.log", "diff.patch"} == set()


def test_the_hook_for_unhandled_errors_stays_as_it_was(output: Path) -> None:
    assert sys.excepthook is sys.__excepthook__ or "wandb" not in str(sys.excepthook)


def test_a_missing_package_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        Wandb(WandbConfig()).start(tmp_path, {}, 0)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"mode": "disabled"}, {"project": ""}, {"timeout_s": 600.0}):
        with pytest.raises(ConfigError, match=rf"trackers\.{next(iter(wrong))} \(wandb\)"):
            WandbConfig(**wrong)  # type: ignore[arg-type]
