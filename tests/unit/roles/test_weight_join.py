"""Receivers that come when others have weights already: between real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlinf_core.api import Host, HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.errors import WorkerDied, WorkerError
from rlinf_core.roles.weight_sync import WeightSync
from rlinf_core.worker import WorkerGroup

sys.path.insert(0, str(Path(__file__).parent))
from weight_workers import Sent, parameters


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    engine = LocalEngine(LocalConfig())
    yield engine.start([HostSpec(f"host{number}") for number in range(6)])
    engine.stop()


class Run:
    """An actor, receivers, and more receivers that may come."""

    def __init__(self, hosts: list[Host], receivers: int, **options: object) -> None:
        self.hosts, self.options = hosts, options
        self.kept: list[tuple[Host, str]] = []
        live = {"live": bool(options.pop("live", False))}
        self.actor = WorkerGroup.create("actor", "weight_workers:Sender", hosts[:1], live, ["cpu"], 0)
        self.kept += self.actor.members
        self.receivers = self.make("rollout", *range(1, 1 + receivers))
        self.sync = WeightSync(self.actor, self.receivers)

    def make(self, name: str, *numbers: int) -> WorkerGroup:
        hosts, devices = [self.hosts[number] for number in numbers], ["cpu"] * len(numbers)
        made = WorkerGroup.create(name, "weight_workers:Taker", hosts, self.options, devices, 0)
        self.kept += made.members
        return made

    def train(self, times: int = 1) -> None:
        for _ in range(times):
            self.actor.call("train").wait()

    def held(self) -> list[Sent]:
        return self.receivers.call("held").wait()

    def loads(self) -> list[int]:
        return self.receivers.call("loads").wait()


Make = Callable[..., Run]


@pytest.fixture
def made(hosts: list[Host]) -> Iterator[Make]:
    runs: list[Run] = []

    def make(receivers: int, **options: object) -> Run:
        runs.append(Run(hosts, receivers, **options))
        return runs[-1]

    yield make
    for run in runs:
        for host, name in run.kept:
            WorkerGroup(name, [(host, name)]).drop().wait()


WAYS: dict[str, dict[str, object]] = {
    "live": {"live": True},
    "written": {},
    "far": {"pretends_to_be_far": True},
    "new machine": {"pretends_to_be_far": ["late[0]"]},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("receivers", [1, 2])
def test_a_receiver_that_comes_late_is_given_what_the_others_have(
    made: Make, way: str, receivers: int
) -> None:
    run = made(receivers, **WAYS[way])
    for version in range(3):  # of which later ones do not bring what is frozen
        run.sync()
        run.train(version < 2)
    run.receivers.members += run.make("late", 3).members
    run.sync.join()
    assert run.held() == [(2, parameters(2))] * (1 + receivers)
    assert run.loads() == [3] * receivers + [1]
    for version in (3, 4):
        run.train()
        run.sync()
        assert run.held() == [(version, parameters(version))] * (1 + receivers)


def test_an_update_brings_those_who_came_before_it(made: Make) -> None:
    run = made(1)
    run.sync()
    run.train()
    run.sync()
    run.receivers.members += run.make("late", 2).members
    run.train()
    run.sync()
    assert run.held() == [(2, parameters(2))] * 2


@pytest.mark.parametrize("way", ["live", "written", "far"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_receiver_that_was_started_again_is_given_what_it_had(made: Make, way: str, rank: int) -> None:
    run = made(2, **WAYS[way])
    for _ in range(2):
        run.sync()
        run.train()
    run.sync()
    host, name = run.receivers.members[rank]
    host.drop(name).result()
    run.kept.remove((host, name))
    again = WorkerGroup.create("again", "weight_workers:Taker", [host], run.options, ["cpu"], 0)
    run.kept += again.members
    run.receivers.members[rank] = again.members[0]
    run.sync.join()
    assert run.held() == [(2, parameters(2))] * 2
    run.train()
    run.sync()
    assert run.held() == [(3, parameters(3))] * 2


def test_one_that_was_started_again_under_its_old_name_has_to_be_named(made: Make) -> None:
    run = made(2)
    run.sync()
    run.receivers.call_rank(1, "forget").result()
    run.sync.join()
    assert run.loads() == [1, 0]
    run.sync.join([1])
    assert run.loads() == [1, 1]
    assert run.held() == [(0, parameters(0))] * 2


def test_what_was_taken_and_not_given_is_not_given_to_those_who_come(made: Make) -> None:
    run = made(1)
    run.sync.give(run.sync.take())
    run.train()
    taken = run.sync.take()
    run.train()
    run.receivers.members += run.make("late", 2).members
    run.sync.join()
    assert run.held() == [(0, parameters(0))] * 2
    run.sync.give(taken)
    assert run.held() == [(1, parameters(1))] * 2


def test_changes_that_one_who_came_late_has_already_are_passed_over(made: Make) -> None:
    run = made(2, pretends_to_be_far=["rollout[1]", "late[0]"])
    run.sync.give(run.sync.take())
    run.train()
    taken = run.sync.take()
    run.receivers.members[1] = run.make("late", 3).members[0]
    run.sync.join()
    assert run.held() == [(0, parameters(0)), (1, parameters(1))]
    run.sync.give(taken)
    assert run.held() == [(1, parameters(1))] * 2
    run.train()
    run.sync.give(run.sync.take())
    assert run.held() == [(2, parameters(2))] * 2


@pytest.mark.parametrize("way", ["written", "far"])
def test_who_left_is_sent_nothing_any_more(made: Make, way: str) -> None:
    run = made(3, **WAYS[way])
    run.sync()
    left = WorkerGroup("left", [run.receivers.members.pop(0)])
    run.train()
    run.sync()
    run.receivers.members.pop()
    run.train()
    run.sync()
    assert run.held() == [(2, parameters(2))]
    assert left.call("loads").wait() == [1]


def test_many_machines_pass_weights_on_to_each_other(made: Make) -> None:
    run = made(4, machines=True, refuses_at=("rollout[1]", 6))
    for version in range(3):
        run.sync()
        assert run.held() == [(version, parameters(version))] * 4
        run.train()
    one, two = run.receivers.members[1:3]
    run.receivers.members[1:3] = [two, one]
    run.sync()
    del run.receivers.members[2]
    run.train()
    run.sync()
    assert run.held() == [(4, parameters(4))] * 3
    run.receivers.members += [one]
    run.sync.join()
    run.train()
    run.sync()
    assert run.held() == [(5, parameters(5))] * 4
    run.train()
    with pytest.raises(WorkerError, match=r"rollout\[1\] has no room"):
        run.sync()


def test_one_that_dies_in_a_chain_of_machines_is_named() -> None:
    engine = LocalEngine(LocalConfig())
    try:
        hosts = engine.start([HostSpec(f"host{number}") for number in range(5)])
        run = Run(hosts, 4, machines=True, dies_at=("rollout[2]", 1))
        run.sync()
        run.train()
        with pytest.raises(WorkerDied, match=r"rollout\[2\]"):
            run.sync()
    finally:
        engine.stop()
