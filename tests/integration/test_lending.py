"""Devices that are lent within a step, in real processes: the same bits, named deaths, and their return."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlinf_core.api.spans import HostSpan
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import WorkerError
from rlinf_core.flows.flow import Requests
from rlinf_core.run.compose import RunGraph, make_source, start
from rlinf_core.run.graph import make_graph
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.plan import Mode

sys.path.insert(0, str(Path(__file__).parent))
from trained_weights import REWARD, difference, published

STEPS = 3
TEXT = (
    "model=hf_lm",
    "model.preset=char-llama",
    "data=sort_digits",
    "sampling.max_new_tokens=8",
    "trackers=[]",
    "train.prompts_per_step=6",
    "train.steps=3",
    "algo=grpo",
    "algo.group_size=4",
    "algo.kl_coef=0.05",
    "optimizer.lr=1e-4",
    "optimizer.eps=1e-6",
    "ranks=2",
)


def settings(folder: Path, dynamic: str, *more: str) -> RunConfig:
    (folder / "reward.py").write_text(REWARD)
    words = (*TEXT, f"reward={folder / 'reward.py'}:letters", f"schedule.dynamic={dynamic}", *more)
    return replace(compose(Options(overrides=words)), output=str(folder))


@contextmanager
def running(config: RunConfig, mode: Mode = "collocated") -> Iterator[RunGraph]:
    graph = start(config, default_plan(make_graph(config), 2, mode))
    try:
        yield graph
    finally:
        graph.stop()


def send(graph: RunGraph, device: int, what: signal.Signals) -> None:
    os.kill(graph.crew.hosts.devices[device].process.pid, what)  # type: ignore[attr-defined]


def trained(config: RunConfig, mode: Mode = "collocated", stopped: int | None = None) -> dict[str, Tensor]:
    """The parameters after some steps; the process of a device does nothing for the first half second of
    each, where one is named."""
    source = make_source(config)
    with running(config, mode) as graph:
        for step in range(STEPS):
            if stopped is not None:
                send(graph, stopped, signal.SIGSTOP)
                threading.Timer(0.5, send, (graph, stopped, signal.SIGCONT)).start()
            graph.flow.step(source.train(step), step)
        return published(graph.actor)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [(), ("algo.kl_coef=0", "train.micro_batch_tokens=24")], ids=["whole", "pieces"]
)
def test_who_computes_what_changes_no_bit_and_lending_nothing_that_counts(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    config = settings(tmp_path, "in-step", *words)
    expected = trained(config)
    for found in (trained(config, stopped=0), trained(config, "hybrid")):
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    ordinary = trained(settings(tmp_path, "step", *words))
    assert 0.0 < difference(expected, ordinary) < 1e-5


def wait_for(graph: RunGraph, worker: str, stage: str) -> None:
    """Until a rank has ended a stage."""
    end = time.monotonic() + 60
    while not any((one.span.worker, one.span.name) == (worker, stage) for one in graph.engine.drain_spans()):
        assert time.monotonic() < end, f"{worker} has not ended {stage}"
        time.sleep(0.002)


@pytest.mark.slow
def test_lent_devices_come_back_and_the_death_of_one_is_named(tmp_path: Path) -> None:
    long = ("sampling.max_new_tokens=200", "sampling.min_new_tokens=200")
    config = settings(tmp_path, "in-step", *long)
    groups = list(make_source(config).train(0).first())
    for number in range(0, 6, 2):  # what device 0 generates is short
        groups[number] = [replace(request, until=2) for request in groups[number]]

    with running(config) as graph:

        def step_on() -> None:
            graph.flow.step(Requests(lambda *_: groups, 6), 0)

        step_on()
        graph.engine.drain_spans()
        done: list[dict[str, list[HostSpan]]] = []
        for _ in range(2):
            step_on()
            spans = graph.engine.drain_spans()
            done.append({name: _of(spans, name) for name in ("generate", "train_shared")})
        for each in done:  # each device generated its half, whatever it was lent for
            assert {one.host: one.span.samples for one in each["generate"]} == {"device0": 12, "device1": 12}
            assert sum(one.span.samples for one in each["train_shared"]) == 24
        lent_until = max(one.span.end for one in done[0]["train_shared"])
        assert all(one.span.start > lent_until for one in done[1]["generate"])

        failed: list[BaseException] = []
        stepping = threading.Thread(target=lambda: failed.append(_raised(step_on)))
        stepping.start()
        wait_for(graph, "rollout[0]", "generate")
        send(graph, 0, signal.SIGKILL)  # while the other device generates
        stepping.join(60)
        assert [getattr(error, "worker", "") for error in failed] == ["actor[0]"]


def _raised(function: Callable[[], None]) -> BaseException:
    with pytest.raises(WorkerError) as raised:
        function()
    return raised.value


def _of(spans: list[HostSpan], name: str) -> list[HostSpan]:
    return [one for one in spans if one.span.name == name and one.span.kind == "run"]
