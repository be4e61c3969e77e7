"""Conformance checks of trackers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rlinf_core.media.png import encode_png
from rlinf_core.testing.outside import refused_connections
from rlinf_core.testing.subject import Subject, expect


def check_trackers_life(subject: Subject) -> None:
    """Start, log, samples and finish work without a network, and leave something in the output."""
    with _output() as output:
        tracker = subject.build()
        tracker.start(output, {"seed": 0, "algo": {"name": "x"}}, resumed_step=0)
        tracker.log(1, {"train/loss": 0.5, "time/step": 1.0})
        tracker.log(2, {"train/loss": 0.25, "eval/accuracy": 1.0})
        tracker.log_samples(2, [{"prompt": "1+1=", "response": "2", "reward": 1.0}])
        tracker.finish(None)
        written = [path for path in output.rglob("*") if path.is_file() and path.stat().st_size]
        expect(written, "after finish() nothing lies in the output folder; write there, or keep a copy there")


def check_trackers_odd_numbers(subject: Subject) -> None:
    """Metrics that come late, are missing, or are not finite do not raise."""
    with _output() as output:
        tracker = subject.build()
        tracker.start(output, {}, resumed_step=0)
        tracker.log(1, {})
        tracker.log(2, {"train/loss": float("nan"), "train/grad_norm": float("inf")})
        tracker.log(3, {"a/new one": -1.0})
        tracker.finish(None)


def check_trackers_failed_run(subject: Subject) -> None:
    """`finish` takes the error of a failed run, also before the first step."""
    with _output() as output:
        tracker = subject.build()
        tracker.start(output, {"seed": 0}, resumed_step=0)
        tracker.finish(RuntimeError("stopped"))


def check_trackers_resume(subject: Subject) -> None:
    """A second start in the same output continues it."""
    with _output() as output:
        for resumed_step in (0, 1):
            tracker = subject.build()
            tracker.start(output, {"seed": 0}, resumed_step=resumed_step)
            tracker.log(resumed_step + 1, {"train/loss": 1.0})
            tracker.finish(None)


def check_trackers_pictures(subject: Subject) -> None:
    """Pictures and videos of a step are taken, or left out, without raising."""
    with _output() as output:
        picture = output / "eval-0-last.png"
        picture.write_bytes(encode_png(np.zeros((4, 6, 3), np.uint8)))
        video = output / "eval-0.mp4"
        video.write_bytes(b"\0\0\0\x08ftyp")  # nothing that plays; trackers do not look inside
        tracker = subject.build()
        tracker.start(output, {"seed": 0}, resumed_step=0)
        tracker.log(1, {"train/loss": 0.5})
        tracker.log_picture(1, "videos/eval-0", picture)
        tracker.log_video(1, "videos/eval-0", video)
        tracker.finish(None)


def check_trackers_stay_here(subject: Subject) -> None:
    """With the settings of the check no connection to another machine is tried."""
    with _output() as output, refused_connections() as tried:
        tracker = subject.build()
        tracker.start(output, {"seed": 0}, resumed_step=0)
        tracker.log(1, {"train/loss": 0.5})
        tracker.log_samples(1, [{"prompt": "1+1=", "response": "2"}])
        tracker.finish(None)
    advice = "give it a mode without network, and make that the default"
    expect(not tried, f"it tried to reach {', '.join(tried)}; {advice}")


@contextmanager
def _output() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
