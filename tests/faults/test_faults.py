"""Runs with faults end as runs without: a dozen in every session, all of them every night."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.alone
@pytest.mark.parametrize("which", [0, 1], ids=["text", "embodied"])
def test_what_fails_is_made_again_or_named_and_nothing_is_left(which: int, tmp_path: Path) -> None:
    from campaign import play
    from trials import SOME

    mode, faults = SOME[which]
    trials = play(mode, faults, tmp_path)
    assert not [(trial.fault, trial.outcome, trial.wrong) for trial in trials if trial.wrong]
    expected = {"raise": "error", "kill": "absorbed", "corrupt": "absorbed", "stop": "absorbed"}
    for trial in trials:
        retried = trial.fault.place in ("reward.score", "simulator.step")
        assert trial.outcome == ("absorbed" if retried else expected[trial.fault.what]), trial
        if trial.outcome == "error":
            assert f"fault {trial.fault.number} at {trial.fault.place}" in trial.said


def test_there_are_two_hundred_trials_of_every_worker_and_stage() -> None:
    from trials import KINDS, VISITS

    faults = [fault for kind in KINDS for run in kind.campaigns() for fault in run]
    assert len(faults) >= 200
    assert {fault.place for fault in faults} == set(VISITS)
    whats = {"kill", "stop", "raise", "slow", "late", "corrupt", "full", "driver"}
    assert {fault.what for fault in faults} == whats


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timeout(7200)
def test_all_trials(tmp_path: Path) -> None:
    from campaign import play
    from trials import KINDS

    wrong = []
    for kind in KINDS:
        for number, faults in enumerate(kind.campaigns()):
            folder = tmp_path / f"{kind.mode.name}-{number}".replace(" ", "-").replace(",", "")
            wrong += [trial for trial in play(kind.mode, faults, folder) if trial.wrong]
    assert not wrong
