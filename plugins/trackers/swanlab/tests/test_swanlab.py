"""What the tracker leaves offline, read back by SwanLab's own reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rlinf_tracker_swanlab.config import SwanLabConfig
from rlinf_tracker_swanlab.tracker import SwanLab
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.proto.swanlab.run.v1.run_pb2 import RunState
from swanlab.sdk.internal.core_python.store import DataStoreReader

from rlinf_core.errors import ConfigError
from rlinf_core.media.png import encode_png

SETTINGS = {"seed": 7, "algo": {"name": "a", "clip": [0.2, 0.28]}, "trackers": []}
CODE = """
import sys
from pathlib import Path
from rlinf_core.testing.outside import refused_connections
with refused_connections() as tried:
    from rlinf_tracker_swanlab.config import SwanLabConfig
    from rlinf_tracker_swanlab.tracker import SwanLab
    tracker = SwanLab(SwanLabConfig())
    tracker.start(Path(sys.argv[1]), {"seed": 7}, 0)
    tracker.log(1, {"train/loss": 0.5})
    tracker.finish(None)
print("tried:", tried)
"""
QUIETED_BY = ("PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS")


def runs(output: Path) -> list[list[Any]]:
    """The records of every start, in their order."""
    found = []
    for file in sorted((output / "swanlab").glob("run-*/*.swanlab")):
        reader = DataStoreReader()
        reader.open(file)
        found.append([Record.FromString(content) for content in reader])
        reader.close()
    return found


def only(records: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records if record.HasField(kind)]


def logged(output: Path, resumed_step: int, steps: tuple[int, ...], error: Exception | None = None) -> None:
    tracker = SwanLab(SwanLabConfig(project="p", tags=("x", "y")))
    tracker.start(output, SETTINGS, resumed_step)
    for step in steps:
        tracker.log(step, {"train/loss": 1.0 / step})
        tracker.log_samples(step, [{"step": step, "answer": "é"}, {"step": step, "answer": [1]}])
    still = output / "still.png"
    still.write_bytes(encode_png(np.full((4, 6, 3), 9, np.uint8)))
    tracker.log_picture(steps[-1], "videos/eval-0", still)
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
    first, second = ([(line.step, line.value.number) for line in only(run, "scalar")] for run in runs(output))
    assert first == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert second == [(3, 1 / 3), (4, 0.25)]


def test_project_name_and_settings_are_there(output: Path) -> None:
    (start,) = only(runs(output)[0], "start")
    assert (start.project, start.name, list(start.tags)) == ("p", "mine", ["x", "y"])
    (file, _) = sorted((output / "swanlab").glob("run-*/files/config.yaml"))
    assert {name: entry["value"] for name, entry in yaml.safe_load(file.read_text()).items()} == SETTINGS


def test_samples_are_texts_and_pictures_images_of_their_step(output: Path) -> None:
    media = {(line.key, line.step): line.value.items for line in only(runs(output)[0], "media")}
    assert sorted(media) == [("samples", 1), ("samples", 2), ("samples", 3), ("videos/eval-0", 3)]
    (folder, _) = sorted((output / "swanlab").glob("run-*/media"))
    texts = [(folder / "text" / item.filename).read_text("utf-8") for item in media["samples", 2]]
    assert [json.loads(text)["answer"] for text in texts] == ["é", [1]]
    (picture,) = media["videos/eval-0", 3]
    assert (folder / "image" / picture.filename).read_bytes().startswith(b"\x89PNG")


def test_a_resumed_run_goes_on_under_its_id_and_says_how_it_ended(output: Path) -> None:
    kept = (output / "swanlab" / "rlinf-run-id").read_text()
    ends = [end for run in runs(output) for end in only(run, "finish")]
    assert {start.id for run in runs(output) for start in only(run, "start")} == {kept}
    assert [end.state for end in ends] == [RunState.RUN_STATE_FINISHED, RunState.RUN_STATE_CRASHED]
    assert ends[1].error == "ValueError: no more"


def test_nothing_of_the_machine_is_recorded_unless_asked(output: Path) -> None:
    for file in (output / "swanlab").glob("run-*/files/swanlab-metadata.json"):
        told = json.loads(file.read_text())
        assert (told["hardware"], told["runtime"], told["git"]) == (None, None, None)
    assert [*(output / "swanlab").glob("run-*/files/requirements.txt")] == []


def test_hooks_and_signals_stay_as_they_were(tmp_path: Path) -> None:
    before = (sys.excepthook, signal.getsignal(signal.SIGINT))
    tracker = SwanLab(SwanLabConfig())
    tracker.start(tmp_path, {}, 0)
    during = (sys.excepthook, signal.getsignal(signal.SIGINT))
    tracker.finish(None)
    assert during == before
    assert (sys.excepthook, signal.getsignal(signal.SIGINT)) == before


def test_a_fresh_process_reaches_for_no_other_machine(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in QUIETED_BY}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "tried: []" in done.stdout


def test_a_missing_package_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "swanlab", None)
    with pytest.raises(ConfigError, match="pip install swanlab"):
        SwanLab(SwanLabConfig()).start(tmp_path, {}, 0)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"mode": "local"}, {"project": ""}, {"tags": ("t",) * 31}):
        with pytest.raises(ConfigError, match=rf"trackers\.{next(iter(wrong))} \(swanlab\)"):
            SwanLabConfig(**wrong)  # type: ignore[arg-type]
