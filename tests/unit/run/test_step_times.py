"""Seconds of components and devices from spans, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.api.spans import HostSpan, Span, SpanKind
from rlinf_core.run.step_times import component_times, device_seconds, step_times


def _span(
    host: str, worker: str, kind: SpanKind, start: float, end: float, samples: int = 0, chunks: int = 0
) -> HostSpan:
    return HostSpan(host, Span(worker, kind, kind, start, end, samples, chunks))


# Window 0..10. device0: rollout[0] runs 0..4 and waits 1..2; then actor[0] is brought 4..5 and runs 5..10,
# waiting 6..6.5. device1: rollout[1] runs 0..8. The reward has no device: it runs 1..9 and waits 1..7.
SPANS = [
    _span("device0", "rollout[0]", "run", 0, 4, samples=6, chunks=3),
    _span("device0", "rollout[0]", "wait", 1, 2),
    _span("device0", "actor[0]", "load", 4, 5),
    _span("device0", "actor[0]", "run", 5, 10, samples=16, chunks=1),
    _span("device0", "actor[0]", "wait", 6, 6.5),
    _span("device1", "rollout[1]", "run", 0, 8, samples=10, chunks=1),
    _span("reward", "reward[0]", "run", 1, 9, samples=16, chunks=4),
    _span("reward", "reward[0]", "wait", 1, 7),
]


def test_who_works_ahead_is_told_of_with_what_came_before_the_step() -> None:
    found = step_times(SPANS, 3.0, 10.0, ["device0", "device1"], ahead=True)
    assert (found["time/rollout"], found["time/reward"], found["time/actor"]) == (8.0, 2.0, 4.5)
    assert found["util/device1"] == pytest.approx(5 / 7)  # of the step itself
    assert step_times(SPANS, 3.0, 10.0, ["device0"])["time/rollout"] == 5.0


def test_metrics_of_a_step() -> None:
    assert step_times(SPANS, 0.0, 10.0, ["device0", "device1"]) == pytest.approx(
        {
            "time/actor": 4.5,
            "time/actor_mean": 4.5,
            "time/actor_wait": 0.5,
            "time/actor_load": 1.0,
            "time/reward": 2.0,
            "time/reward_mean": 2.0,
            "time/reward_wait": 6.0,
            "time/rollout": 8.0,
            "time/rollout_mean": 5.5,
            "time/rollout_wait": 0.5,
            "util/device0": 0.75,
            "util/device1": 0.8,
            "bubble_ratio": 1 - 15.5 / 20,
        }
    )


def test_devices_are_lent_from_the_end_of_their_generation_to_the_end_of_all() -> None:
    """Device 0 generates until 4 and device 1 until 8; device 2 only trains."""
    stages = [
        *((0, "rollout[0]", "generate", 0, 4), (1, "rollout[1]", "generate", 1, 8)),
        *((0, "actor[0]", "publish", 0, 0.5), (0, "actor[0]", "train_shared", 4, 10)),
        *((1, "actor[1]", "train_shared", 8, 10), (2, "actor[2]", "train_shared", 0, 10)),
    ]
    spans = [HostSpan(f"device{n}", Span(who, what, "run", *when)) for n, who, what, *when in stages]
    spans.append(_span("device0", "actor[0]", "wait", 5, 6.5))
    assert step_times(spans, 0.0, 10.0, ["device0"])["time/lent"] == 8 - 4 - 1.5
    assert step_times(spans, 7.0, 10.0, ["device0"]).get("time/lent") is None
    assert step_times(spans, 3.0, 10.0, ["device0"])["time/lent"] == 2.5
    assert "time/lent" not in step_times(SPANS, 0.0, 10.0, ["device0"])


def test_only_what_lies_in_the_window_counts() -> None:
    assert device_seconds(SPANS, 3.0, 7.0) == pytest.approx({"device0": 2.5, "device1": 4.0, "reward": 0.0})
    assert set(component_times(SPANS, 8.5, 10.0)) == {"actor", "reward"}


def test_a_device_is_busy_once_even_where_two_of_its_workers_overlap() -> None:
    spans = [_span("d", "a[0]", "run", 0, 6), _span("d", "b[0]", "run", 4, 8)]
    assert device_seconds(spans, 0.0, 10.0) == {"d": 8.0}


def test_what_runs_while_another_worker_of_the_device_waits_is_work() -> None:
    spans = [
        _span("d", "outer[0]", "run", 0, 10),
        _span("d", "outer[0]", "wait", 2, 6),
        _span("d", "inner[0]", "run", 2, 5),
    ]
    assert device_seconds(spans, 0.0, 10.0) == {"d": 9.0}
    assert component_times(spans, 0.0, 10.0)["outer"].busy_s == 6.0


def test_moving_memory_within_a_run_is_not_work() -> None:
    spans = [_span("d", "a[0]", "run", 0, 10), _span("d", "b[0]", "load", 3, 5)]
    assert device_seconds(spans, 0.0, 10.0) == {"d": 8.0}
    times = component_times(spans, 0.0, 10.0)
    assert (times["a"].busy_s, times["b"].load_mean_s, times["b"].busy_s) == (8.0, 2.0, 0.0)


def test_time_belongs_to_the_innermost_worker() -> None:
    spans = [
        _span("d", "environment[0]", "run", 0, 6),  # of which 2 are the policy's, and 0.5 are waiting
        _span("d", "environment[0]", "wait", 0, 0.5),
        _span("d", "rollout[0]", "run", 1, 2),
        _span("d", "environment[0]", "run", 2, 3),  # a part of itself, such as one call of the simulator
        _span("d", "rollout[0]", "run", 4, 5),
        _span("e", "environment[1]", "run", 0, 4),
        _span("e", "rollout[1]", "run", 0, 3),
    ]
    times = component_times(spans, 0.0, 10.0)
    assert (times["environment"].busy_s, times["environment"].busy_mean_s) == (3.5, 2.25)
    assert (times["rollout"].busy_s, times["rollout"].busy_mean_s) == (3.0, 2.5)
    assert device_seconds(spans, 0.0, 10.0) == {"d": 5.5, "e": 4.0}
    assert component_times(spans, 1.5, 4.5)["rollout"].busy_s == 1.5


def test_a_device_without_spans_is_idle() -> None:
    assert step_times([], 0.0, 2.0, ["device0"]) == {"util/device0": 0.0, "bubble_ratio": 1.0}
    assert step_times([], 0.0, 2.0, []) == {}


def test_the_example_of_the_page_holds() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tracing.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert "step_times" in example
    exec(compile(example, "tracing.md", "exec"), {})
