"""Which weights make the rows of which step, however long anything takes; worked out by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from rlinf_core.errors import WorkerDied
from rlinf_core.flows.flow import Flow, Played, Requests, StepResult
from rlinf_core.roles.weight_sync import Weights
from rlinf_core.run.ahead import RunAhead, staleness
from rlinf_core.types import Experience, Prompt, Sample

Wait = Callable[[], None]


def row(version: int, length: int = 2, error: str | None = None) -> Experience:
    return Experience(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(length, dtype=bool),
        logprobs=np.zeros(length, dtype=np.float32),
        weight_version=version,
        error=error,
    )


@dataclass
class Sync:
    """Weights of which nothing but the version is known."""

    actors: int = 0
    players: int = -1
    version: int = -1
    metrics: dict[str, float] = field(default_factory=lambda: {"sync/mb": 3.0})

    def __call__(self) -> None:
        self.players = self.version = self.actors

    def newest(self) -> int:
        return self.actors

    def take(self) -> Weights:
        self.version = self.actors
        return Weights(self.actors)

    def give(self, weights: Weights) -> None:
        self.players = weights.version


@dataclass
class Pretence(Flow):
    """Plays and trains for as long as it is told, and writes down what with which versions."""

    separate: bool
    playing: Wait = lambda: None
    training: Wait = lambda: None
    updates: int = 1
    fails: int = -1
    sync: Sync = field(default_factory=Sync)  # type: ignore[assignment]
    trained: list[tuple[int, int, int]] = field(default_factory=list)  # step, version of its rows, oldest
    asked: list[int] = field(default_factory=list)

    @property
    def apart(self) -> bool:
        return self.separate

    def step(self, requests: Requests, step: int) -> StepResult:
        self.sync()
        return self.train(self.play(requests), step, 0)

    def play(self, requests: Requests) -> Played:
        (number,) = requests.first().collect()
        self.asked.append(number)
        self.playing()
        if number == self.fails:
            raise WorkerDied(f"no rows for step {number}", worker="rollout[0]")
        rows = [row(self.sync.players)]
        return Played(rows, rows)

    def train(self, played: Played, step: int, oldest: int) -> StepResult:
        self.training()
        self.trained.append((step, played.kept[0].weight_version, oldest))
        self.sync.actors += self.updates
        return StepResult(played.rows)

    def evaluate(self, requests: object) -> list[Experience]:
        self.sync()
        return []


def requests(step: int) -> Requests:
    return Requests(lambda asked, count: [[step]], 1)


def pauses(seed: int, most_s: float) -> Wait:
    draw = random.Random(seed)
    return lambda: time.sleep(draw.random() * most_s)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(
    ("lag", "expected"),
    [
        (0, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]),
        (1, [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)]),
        (2, [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2)]),
        (9, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]),
    ],
)
@pytest.mark.parametrize(("playing_s", "training_s"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.02), (0.01, 0.01)])
def test_the_lag_is_fixed_whatever_takes_how_long(
    separate: bool, lag: int, expected: Sequence[tuple[int, int]], playing_s: float, training_s: float
) -> None:
    flow = Pretence(separate, pauses(1, playing_s), pauses(2, training_s))
    ahead = RunAhead(lag, 5, requests)
    found = [ahead.step(flow, step) for step in range(5)]
    assert [(step, version) for step, version, _ in flow.trained] == expected
    assert flow.asked == [0, 1, 2, 3, 4]
    if lag:
        assert all(result.metrics["sync/mb"] == 3.0 for result in found)
        ages = [step - version for step, version in expected]
        assert [result.metrics["train/staleness_max"] for result in found] == ages
        assert [oldest for _, _, oldest in flow.trained] == [max(0, step - lag) for step in range(5)]


def test_weights_count_by_steps_where_a_step_has_several_updates() -> None:
    flow = Pretence(separate=True, updates=3)
    ahead = RunAhead(1, 4, requests)
    found = [ahead.step(flow, step) for step in range(4)]
    assert flow.trained == [(0, 0, 0), (1, 0, 0), (2, 3, 3), (3, 6, 6)]
    assert [result.metrics["train/staleness_max"] for result in found] == [0, 1, 1, 1]


def test_an_evaluation_between_steps_changes_no_rows() -> None:
    flow = Pretence(separate=True, playing=pauses(3, 0.01))
    ahead = RunAhead(2, 6, requests)
    for step in range(6):
        ahead.step(flow, step)
        ahead.settle()
        flow.evaluate(None)
        assert flow.sync.players == step + 1
    assert [version for _, version, _ in flow.trained] == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("separate", [False, True])
def test_what_fails_while_it_runs_ahead_is_raised(separate: bool) -> None:
    flow = Pretence(separate, fails=3)
    ahead = RunAhead(1, 9, requests)

    def go_on() -> None:
        for step in range(9):
            ahead.step(flow, step)

    with pytest.raises(WorkerDied, match="no rows for step 3"):
        go_on()
    assert len(flow.trained) in (2, 3)  # in turn, or while step 2 is trained


def test_staleness_is_that_of_each_decision() -> None:
    mixed = Sample(
        group=0,
        replica=0,
        seed=0,
        mask=np.array([True, True, False, True]),
        logprobs=np.zeros(4, dtype=np.float32),
        weight_version=4,
        prompt=Prompt(0, np.array([1]), "p"),
        response_ids=np.zeros(4, dtype=np.int64),
        weight_versions=np.array([4, 8, 8, 9]),
    )
    began = {2: 4, 3: 8, 4: 8, 5: 9}  # step 3 changed nothing
    found = staleness([mixed, row(8), row(9, error="broken")], 5, began)
    assert found == {"train/staleness_mean": (3 + 1 + 0 + 1 + 1) / 5, "train/staleness_max": 3.0}
    assert staleness([row(3)], 5, began)["train/staleness_max"] == 4.0  # before all that is known
    assert staleness([], 5, began) == {"train/staleness_mean": 0.0, "train/staleness_max": 0.0}
