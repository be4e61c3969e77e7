"""Requests of several rounds in one step, and the graph of a flow that plays them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.plugins import plugins
from rlinf_core.run.compose import make_source
from rlinf_core.run.graph import make_graph
from rlinf_core.run.source import EpisodeSource, Source
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.types import Request

PLUGINS = Path(__file__).parents[2] / "integration" / "plugins"
WORDS = ("model=hf_lm", "model.preset=char-llama", "data=sort_digits", "reward=exact", "ranks=2")
SIZES = ("train.prompts_per_step=4", "algo.group_size=2", "sampling.max_new_tokens=8")


@pytest.fixture(autouse=True)
def picky(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugins of the integration tests can be named."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    plugins.cache_clear()
    yield
    plugins.cache_clear()


def settings(*words: str) -> RunConfig:
    return compose(Options(overrides=(*WORDS, *words, *SIZES)))


def drawn(source: Source, step: int, *more: int) -> list[Request]:
    """The requests of a step that asks for more groups in later rounds."""
    requests = source.train(step)
    return [r for stream in (requests.first(), *map(requests.more, more)) for r in stream.collect()]


def test_groups_and_seeds_are_distinct_over_rounds_and_steps() -> None:
    source = make_source(settings("algo=picky", "algo.max_rounds=3"))
    steps = [drawn(source, step, *more) for step, more in enumerate([(3, 4), (), (1,)])]
    assert [sorted({r.group for r in step}) for step in steps] == [
        list(range(11)),
        [12, 13, 14, 15],
        [24, 25, 26, 27, 28],
    ]
    everything = [request for step in steps for request in step]
    assert len({request.seed for request in everything}) == len(everything) == 40
    assert len({(request.group, request.replica) for request in everything}) == 40


def test_the_first_round_asks_for_what_a_step_without_selection_asks_for() -> None:
    selecting, plain = (make_source(settings(f"algo={name}")) for name in ("picky", "grpo"))
    ours, theirs = drawn(selecting, 0), drawn(plain, 0)
    assert [(r.prompt.index, r.replica, r.seed) for r in ours] == [
        (r.prompt.index, r.replica, r.seed) for r in theirs
    ]


def test_a_source_goes_on_after_what_was_drawn() -> None:
    whole, resumed = (make_source(settings("algo=picky")) for _ in range(2))
    drawn(whole, 0, 3, 2)
    state = whole.state_dict()
    assert state["position"] == 9
    resumed.load_state_dict(state)
    ours, theirs = drawn(resumed, 1, 2), drawn(whole, 1, 2)
    assert [(r.group, r.prompt.index, r.seed) for r in ours] == [
        (r.group, r.prompt.index, r.seed) for r in theirs
    ]


def test_episodes_of_later_rounds_start_elsewhere() -> None:
    source = EpisodeSource(settings(), group_size=2, most_groups=12)
    requests = drawn(source, 1, 4)  # type: ignore[arg-type]
    assert [r.group for r in requests[::2]] == list(range(12, 20))
    states = [r.initial_state for r in requests]  # type: ignore[attr-defined]
    assert len(set(states)) == 8
    assert states[::2] == states[1::2]
    assert len({r.seed for r in requests}) == 16


@pytest.mark.parametrize("words", [(), ("algo.reference=true",)])
def test_a_barrier_stands_where_groups_are_selected(words: tuple[str, ...]) -> None:
    graph = make_graph(settings("algo=picky", *words))
    barriers = {edge.target for edge in graph.edges if edge.barrier}
    assert barriers == {part.name for part in graph.components} - {"rollout", "reward"}
    assert default_plan(graph, 2, "disaggregated").assignments["rollout"].chunk == 0


def test_without_selection_groups_stream() -> None:
    config = settings("algo=picky", "algo.max_rounds=0")
    assert not any(edge.barrier for edge in make_graph(config).edges)
    several = replace(config, train=replace(config.train, mini_batches=2))
    assert [edge.target for edge in make_graph(several).edges if edge.barrier] == ["actor"]
