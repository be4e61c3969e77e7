"""`rlinf scale`: what it says where there is nothing to scale, and what it passes on."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.run.scale_desk import ScaleDesk

DONE = {"ranks": {"actor": [1, 2]}, "step": 7, "pause_s": 0.25, "moved_bytes": 3 * 2**20}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("actor",), "'actor' is no COMPONENT=N, such as actor=2"),
        (("actor=two",), "'actor=two' is no COMPONENT=N"),
        (("actor=2", "actor=3"), "actor is given twice"),
        (("actor=2",), "nothing runs here, on this machine, that could be scaled"),
    ],
)
def test_what_cannot_be_asked_is_told(
    refused: Any, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in refused("scale", tmp_path, *words)


def test_a_run_that_is_not_there_is_told(refused: Any, tmp_path: Path) -> None:
    assert "there is no run here" in refused("scale", tmp_path / "absent", "actor=2")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_answer_of_the_run_is_printed(rlinf: Any, tmp_path: Path, flags: tuple[str, ...]) -> None:
    desk = ScaleDesk(tmp_path)

    def serve() -> None:
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            for request in desk.new():
                desk.answer(request, state="done", **DONE)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    ended = rlinf("scale", tmp_path, "actor=2", *flags)
    thread.join()
    assert ended.code == 0
    if flags:
        assert json.loads(ended.out) == {"state": "done", **DONE}
    else:
        assert "actor 1 -> 2 after step 7: the run stopped for 0.25 s, 3.0 MB moved" in ended.out
