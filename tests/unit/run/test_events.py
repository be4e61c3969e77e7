"""Observers see a run and cannot end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.loading import new_relay
from rlinf_core.run.events import Events


class Broken:
    @hookimpl
    def rlinf_step_end(self, step: int) -> None:
        raise ZeroDivisionError("no steps yet")


class Good:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def rlinf_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self.seen.append((step, metrics))

    @hookimpl
    def rlinf_checkpoint_saved(self, path: Path) -> None:
        self.seen.append(path)


def test_an_observer_that_fails_is_named_and_the_others_are_still_told() -> None:
    relay, good, said = new_relay(), Good(), list[str]()
    relay.register(good)
    relay.register(Broken(), name="broken-observer")
    events = Events(relay.hook, said.append)
    events.tell("rlinf_step_end", run=None, step=3, metrics={"x": 1.0})
    events.tell("rlinf_checkpoint_saved", run=None, step=3, path=Path("a"))
    assert good.seen == [(3, {"x": 1.0}), Path("a")]
    assert said == [
        "observer broken-observer failed in rlinf_step_end: ZeroDivisionError: no steps yet; the run goes on"
    ]
