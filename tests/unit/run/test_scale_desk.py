"""Requests for other numbers of ranks, from the file to the answer."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rlinf_core.errors import ConfigError, RlinfError
from rlinf_core.run.scale_desk import Request, ScaleDesk, ask, is_open


def silent(_: str) -> None:
    """Whoever asks is told how far it is."""


def serve(desk: ScaleDesk, **answer: object) -> threading.Thread:
    """Answer the first request that comes within ten seconds."""

    def work() -> None:
        end = time.monotonic() + 10.0
        while time.monotonic() < end:
            for request in desk.new():
                desk.progress(request, "preparing")
                desk.answer(request, ranks=dict(request.ranks), **answer)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_request_is_answered_with_what_became_of_it(tmp_path: Path) -> None:
    desk = ScaleDesk(tmp_path)
    thread = serve(desk, state="done", pause_s=0.5)
    found = ask(tmp_path, {"actor": 2}, 10.0, silent)
    thread.join()
    assert (found["ranks"], found["pause_s"]) == ({"actor": 2}, 0.5)
    assert desk.new() == []


def test_what_a_run_refuses_is_its_error(tmp_path: Path) -> None:
    thread = serve(ScaleDesk(tmp_path), state="refused", error="actor=9: this run has 2 devices")
    with pytest.raises(ConfigError, match="did not scale: actor=9: this run has 2 devices"):
        ask(tmp_path, {"actor": 9}, 10.0, silent)
    thread.join()


def test_a_run_that_is_silent_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    desk = ScaleDesk(tmp_path)
    with pytest.raises(RlinfError, match=r"not scaled within 0.3 s: .* a step is under way"):
        ask(tmp_path, {"actor": 2}, 0.3, silent)
    assert desk.new() == []  # the request is withdrawn


def test_a_folder_where_nothing_runs_takes_no_requests(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run here"):
        ask(tmp_path / "absent", {"actor": 2}, 1.0, silent)
    with pytest.raises(ConfigError, match="nothing runs here"):
        ask(tmp_path, {"actor": 2}, 1.0, silent)
    desk = ScaleDesk(tmp_path)
    assert is_open(tmp_path)
    desk.close("the run has ended")
    assert not is_open(tmp_path)


def test_a_run_that_ends_refuses_what_is_open(tmp_path: Path) -> None:
    desk = ScaleDesk(tmp_path)
    failed: list[str] = []

    def client() -> None:
        try:
            ask(tmp_path, {"actor": 2}, 20.0, silent)
        except RlinfError as err:
            failed.append(str(err))

    thread = threading.Thread(target=client)
    thread.start()
    end = time.monotonic() + 10.0
    while not desk.new() and time.monotonic() < end:
        time.sleep(0.01)
    desk.close("the run has ended")
    thread.join()
    assert len(failed) == 1
    assert "the run has ended" in failed[0]


def test_a_file_that_is_no_request_is_answered_and_hurts_nobody(tmp_path: Path) -> None:
    desk = ScaleDesk(tmp_path)
    (tmp_path / "scale" / "odd.json").write_text("{")
    (tmp_path / "scale" / "odder.json").write_text('{"ranks": {"actor": "many"}, "deadline": 0}')
    assert desk.new() == []
    assert "is no request" in (tmp_path / "scale" / "odd.answer.json").read_text()
    assert desk.new() == []


def test_two_runs_in_one_folder_are_one_too_many(tmp_path: Path) -> None:
    desk = ScaleDesk(tmp_path)
    with pytest.raises(ConfigError, match="another run goes on in"):
        ScaleDesk(tmp_path)
    desk.close("the run has ended")
    ScaleDesk(tmp_path).close("the run has ended")
    assert not (tmp_path / "scale").exists()


def test_requests_have_a_deadline() -> None:
    assert Request("1", {"actor": 2}, time.time() - 1.0).late
    assert not Request("1", {"actor": 2}, time.time() + 60.0).late
