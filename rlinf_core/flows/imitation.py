"""Demonstrations -> learn; the policy generates only where it is evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_core.comm.stream import Stream
from rlinf_core.flows.flow import Flow, Played, StepResult, merge_reports, warnings

if TYPE_CHECKING:
    from rlinf_core.flows.flow import Requests
    from rlinf_core.types import Experience


class ImitationFlow(Flow):
    """Supervised learning on rows of the data, or on `recorded` decisions a step; evaluated as the task's own
    flow does."""

    def __init__(self, evaluating: Flow, *, recorded: int = 0) -> None:
        self.evaluating = evaluating
        self.learners = evaluating.learners
        self.sync = evaluating.sync
        self.recorded = recorded

    @property
    def apart(self) -> bool:
        """Nothing plays."""
        return False

    def step(self, requests: Requests, step: int) -> StepResult:
        """The demonstrations of one step."""
        return self.train(self.play(requests), step)

    def play(self, requests: Requests) -> Played:
        """Demonstrations as rows; recorded episodes lie with those who learn."""
        rows: list[Experience] = [] if self.recorded else requests.first().collect()
        return Played(rows, rows, {}, {})

    def train(self, played: Played, step: int, oldest: int | None = None) -> StepResult:
        """The optimizer steps."""
        if self.recorded:
            learned = self.learners.actor.call("imitate_recorded", step, 1, self.recorded)
            metrics = merge_reports(learned.wait())
        else:
            metrics = self.learners.learn(Stream.of([played.kept]), step)
            metrics |= _lengths(played.rows)
        return StepResult(played.rows, metrics, warnings(metrics))

    def evaluate(self, requests: Stream) -> list[Experience]:
        """Rows of the current policy, scored."""
        return self.evaluating.evaluate(requests)

    def counts(self) -> dict[str, float]:
        """Of evaluations."""
        return self.evaluating.counts()


def _lengths(rows: list[Experience]) -> dict[str, float]:
    lengths = [row.length for row in rows]
    return {
        "train/samples": float(len(rows)),
        "train/response_length": sum(lengths) / max(1, len(lengths)),
        "train/response_length_max": float(max(lengths, default=0)),
        "train/truncated": sum(row.finish == "length" for row in rows) / max(1, len(rows)),
    }
