"""Rows against the greedy response to the same prompt, and what is told of a step."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_core.comm.stream import Stream
from rlinf_core.flows.flow import row_metrics, warnings
from rlinf_core.flows.reasoning import ReasoningFlow
from rlinf_core.types import Prompt, Request, Sample, Sampling

PROMPTS = [Prompt(index, np.array([index]), "p") for index in range(3)]


def sample(request: Request, reward: float | None, error: str | None = None) -> Sample:
    return Sample(
        group=request.group,
        replica=request.replica,
        seed=request.seed,
        mask=np.ones(2, dtype=bool),
        logprobs=np.zeros(2, dtype=np.float32),
        weight_version=0,
        reward=reward,
        error=error,
        prompt=request.prompt,
        response_ids=np.zeros(2, dtype=np.int64),
    )


class Answers:
    """A group of workers that answers each request: greedily with a tenth of its group, else with 1."""

    members = ()

    def __init__(self) -> None:
        self.asked: list[tuple[float, float, list[int]]] = []

    def stage(self, method: str, stream: Stream, **kwargs: object) -> Stream:
        if method == "score":
            return stream
        sampling = kwargs["sampling"]
        assert isinstance(sampling, Sampling)
        requests = stream.collect()
        self.asked.append((sampling.temperature, sampling.top_p, [request.seed for request in requests]))
        return Stream.of([[self._answer(request, sampling.temperature == 0.0)] for request in requests])

    def _answer(self, request: Request, greedy: bool) -> Sample:
        if not greedy:
            return sample(request, 1.0)
        failed = request.group == 2
        return sample(request, None if failed else request.group / 10, "broken" if failed else None)


class Actor(Answers):
    actor = property(lambda self: self)


def groups() -> list[list[Request]]:
    return [[Request(p, p.index, r, 10 * p.index + r) for r in range(2)] for p in PROMPTS]


def test_each_row_knows_the_greedy_reward_of_its_prompt() -> None:
    workers = Actor()
    flow = ReasoningFlow(
        workers,  # type: ignore[arg-type]
        workers,  # type: ignore[arg-type]
        workers,  # type: ignore[arg-type]
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(),
        greedy_baseline=True,
    )
    rows, _ = flow._round(Stream.of(groups()), [])
    assert [row.baseline for row in rows] == [0.0, 0.0, 0.1, 0.1, None, None]
    assert [row.reward for row in rows] == [1.0] * 6
    assert [row.error for row in rows[:4]] == [None] * 4
    assert {row.error for row in rows[4:]} == {
        "the greedy response to the same prompt could not be scored: broken"
    }
    assert workers.asked == [
        (0.0, 0.9, [0, 10, 20]),  # one a prompt
        (0.7, 0.9, [0, 1, 10, 11, 20, 21]),  # with the seeds that there would be without it
    ]
    metrics = row_metrics(rows)
    assert metrics["train/greedy_reward"] == pytest.approx(0.05)
    assert metrics["train/unscored"] == 2


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"train/zero_variance_groups": 1.0}, "every group has equal rewards"),
        ({"train/logprob_mismatch": 0.0625}, "differ by 0.062 a decision"),
        ({"train/skipped_steps": 2.0}, "a loss or a gradient was not finite: 2"),
    ],
)
def test_a_person_is_told_what_looks_wrong(metrics: dict[str, float], words: str) -> None:
    (line,) = warnings(metrics)
    assert words in line
    assert warnings(dict.fromkeys(metrics, 0.0)) == []
