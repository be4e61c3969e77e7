"""Stages that go on when a process is lost: what is made again, in which order, and what is set aside."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rlinf_core.api.engine import Engine, Host, HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.inline import InlineEngine
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm import Stream
from rlinf_core.errors import WorkerDied
from rlinf_core.plugins.specs import NoConfig
from rlinf_core.types import EpisodeRequest, Experience
from rlinf_core.worker import WorkerGroup

pytestmark = pytest.mark.alone


class Nurse:
    """Starts processes again at once."""

    def __init__(self, engine: Engine, group: WorkerGroup, limit: int) -> None:
        self.engine, self.group, self.limit = engine, group, limit
        self.deaths: list[str] = []
        self.spared: list[tuple[int, int]] = []

    def heal(self, host: Host, death: WorkerDied, since: float) -> None:
        if len(self.deaths) == self.limit:
            raise death
        self.deaths.append(str(death))
        self.engine.renew(host)
        self.group.renew([rank for rank, (each, _) in enumerate(self.group.members) if each is host])

    def spare(self, item: EpisodeRequest, death: WorkerDied) -> str:
        self.spared.append((item.group, item.replica))
        return f"without {item.seed}"


Start = Callable[..., tuple[WorkerGroup, Nurse]]


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    def begin(ranks: int = 1, limit: int = 9, **kwargs: object) -> tuple[WorkerGroup, Nurse]:
        engine = LocalEngine(LocalConfig())
        request.addfinalizer(engine.stop)
        hosts = engine.start([HostSpec(f"maker{rank}") for rank in range(ranks)])
        kwargs.setdefault("counted", str(tmp_path / "deaths"))
        group = WorkerGroup.create("maker", "row_workers:Maker", hosts, kwargs, ["cpu"] * ranks, 0)
        group.healer = nurse = Nurse(engine, group, limit)
        return group, nurse

    return begin


def asked(groups: int = 3, size: int = 4) -> Stream:
    """Seeds count on from 0."""
    return Stream.of(
        [EpisodeRequest(group, replica, 0, group * size + replica) for replica in range(size)]
        for group in range(groups)
    )


def told(rows: list[Experience | str]) -> list[object]:
    return [row if isinstance(row, str) else (row.seed, row.reward) for row in rows]


@pytest.mark.parametrize("how", ["KILL", "STOP"])
def test_a_stage_whose_process_is_lost_yields_what_it_would_have(start: Start, how: str) -> None:
    """Rows that had come do not come again, and the rest are what they are in a process that made all."""
    group, nurse = start(seed=7, deaths=1, how=how)
    stream = group.stage("make", asked())
    assert told(stream.collect()) == [(seed, seed + 1.0) for seed in range(12)]
    assert stream.result == [12]
    assert len(nurse.deaths) == 1
    assert {"KILL": "SIGKILL", "STOP": "stopped by a signal"}[how] in nurse.deaths[0]


def test_the_other_ranks_go_on_with_their_own(start: Start) -> None:
    group, _ = start(ranks=2, seed=5, deaths=1)
    pids = [host.process.pid for host, _ in group.members]  # type: ignore[attr-defined]
    rows = group.stage("make", asked()).collect()
    assert sorted(row.seed for row in rows) == list(range(12))
    now = [host.process.pid for host, _ in group.members]  # type: ignore[attr-defined]
    assert [old == new for old, new in zip(pids, now, strict=True)] == [True, False]


def test_a_row_that_costs_its_process_again_and_again_is_set_aside_alone(start: Start) -> None:
    group, nurse = start(seed=6, deaths=99)
    rows = told(group.stage("make", asked()).collect())
    assert [row for row in rows if isinstance(row, str)] == ["without 6"]
    assert nurse.spared == [(1, 2)]
    assert sorted(row[0] for row in rows if isinstance(row, tuple)) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert len(nurse.deaths) == 3  # twice in company, and once alone


def test_no_more_starts_than_are_allowed(start: Start) -> None:
    group, nurse = start(limit=1, seed=6, deaths=99)
    with pytest.raises(WorkerDied, match=r"maker\[0\]\.make failed: .*SIGKILL"):
        group.stage("make", asked()).collect()
    assert len(nurse.deaths) == 1


def test_a_process_that_died_while_idle_is_found_when_it_is_needed(start: Start) -> None:
    group, nurse = start()
    assert group.stage("make", asked(1)).collect()
    ((host, _),) = group.members
    os.kill(host.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert len(group.stage("make", asked(1)).collect()) == 4
    assert len(nurse.deaths) == 1


def test_an_engine_that_cannot_start_a_process_again_says_so() -> None:
    engine = InlineEngine(NoConfig())
    (host,) = engine.start([HostSpec("here")])
    assert not engine.renew(host)
    assert host.death() is None
