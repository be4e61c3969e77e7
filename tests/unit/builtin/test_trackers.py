"""The trackers tensorboard and csv, read back with other readers."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.builtin.trackers.config import CsvTrackerConfig, TensorBoardConfig
from rlinf_core.builtin.trackers.csv import CsvTracker
from rlinf_core.media.png import encode_png


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_gains_a_column_when_a_metric_appears_later(tmp_path: Path) -> None:
    tracker = CsvTracker(CsvTrackerConfig())
    tracker.start(tmp_path, {}, 0)
    tracker.log(1, {"loss": 0.5})
    tracker.log(2, {"loss": 0.25, "eval/accuracy": 1.0})
    tracker.log(3, {"loss": 0.125})
    tracker.finish(None)
    assert lines(tmp_path / "metrics.csv") == [
        {"step": "1", "loss": "0.5", "eval/accuracy": ""},
        {"step": "2", "loss": "0.25", "eval/accuracy": "1"},
        {"step": "3", "loss": "0.125", "eval/accuracy": ""},
    ]


def test_csv_drops_lines_after_the_resumed_step(tmp_path: Path) -> None:
    for resumed_step, steps in [(0, (1, 2, 3)), (2, (3, 4))]:
        tracker = CsvTracker(CsvTrackerConfig())
        tracker.start(tmp_path, {}, resumed_step)
        for step in steps:
            tracker.log(step, {"run": float(resumed_step)})
    assert [(line["step"], line["run"]) for line in lines(tmp_path / "metrics.csv")] == [
        ("1", "0"),
        ("2", "0"),
        ("3", "2"),
        ("4", "2"),
    ]


def test_tensorboard_reads_back_what_was_logged_and_purges_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from rlinf_core.builtin.trackers.tensorboard import TensorBoard

    still = tmp_path / "still.png"
    still.write_bytes(encode_png(np.full((4, 6, 3), 9, dtype=np.uint8)))
    for resumed_step, steps in [(0, (1, 2, 3)), (1, (2,))]:
        tracker = TensorBoard(TensorBoardConfig())
        tracker.start(tmp_path, {"seed": 7}, resumed_step)
        for step in steps:
            tracker.log(step, {"loss": step + 10.0 * resumed_step})
        tracker.log_samples(steps[-1], [{"prompt": "p", "response": "r"}])
        tracker.log_picture(steps[-1], "videos/eval-0", still)
        tracker.finish(None)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 12.0)]
    (sample, *_) = events.Tensors("samples/0")
    assert [(event.step, event.width, event.height) for event in events.Images("videos/eval-0")] == [
        (2, 6, 4)
    ]
    assert b'"response": "r"' in sample.tensor_proto.string_val[0]


def test_tensorboard_needs_no_torch() -> None:
    pytest.importorskip("tensorboard")
    code = (
        "import sys, tempfile, pathlib\n"
        "from rlinf_core.builtin.trackers.config import TensorBoardConfig\n"
        "from rlinf_core.builtin.trackers.tensorboard import TensorBoard\n"
        "tracker = TensorBoard(TensorBoardConfig())\n"
        "tracker.start(pathlib.Path(tempfile.mkdtemp()), {}, 0); tracker.log(1, {'a': 1.0})\n"
        "tracker.finish(None); sys.exit('torch' in sys.modules or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
