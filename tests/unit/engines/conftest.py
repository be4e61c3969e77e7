"""Engines over real processes, with workers importable by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlinf_core.api.engine import Engine, Host, HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.inline import InlineEngine
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.plugins.specs import NoConfig
from rlinf_core.worker import WorkerGroup

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _workers_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture(params=["local", "inline"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each engine in turn, with nothing started."""
    made = LocalEngine(LocalConfig()) if request.param == "local" else InlineEngine(NoConfig())
    yield made
    made.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., list[Host]]]:
    engines = []

    def start_hosts(*specs: HostSpec, **settings: object) -> list[Host]:
        engines.append(LocalEngine(LocalConfig(**settings)))  # type: ignore[arg-type]
        return engines[-1].start(specs)

    yield start_hosts
    for engine in engines:
        engine.stop()


@pytest.fixture
def group_of(start: Callable[..., list[Host]]) -> Callable[..., WorkerGroup]:
    def make(ranks: int, name: str = "probe", **settings: object) -> WorkerGroup:
        hosts = start(*(HostSpec(f"{name}{rank}") for rank in range(ranks)), **settings)
        return WorkerGroup.create(name, "engine_workers:Probe", hosts, {}, ["cpu"] * ranks, 7)

    return make
