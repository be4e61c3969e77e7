"""The end of every flow: rows -> [reference] -> [critic's values] -> train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlinf_core.comm.stream import Stream
from rlinf_core.flows.flow import keep_in, merge_reports
from rlinf_core.roles.ordering import unit_weight
from rlinf_core.roles.report import Shown, TrainReport, joined, show

if TYPE_CHECKING:
    from rlinf_core.config.lending import Lent
    from rlinf_core.types import Experience
    from rlinf_core.worker import WorkerGroup


@dataclass
class Taken:
    """What the last step was asked to train on."""

    rows: list[Experience] = field(default_factory=list)
    oldest: int | None = None  # as of `Learners.learn`

    def note(self, rows: Stream, oldest: int | None) -> Stream:
        """The same stream, of which all that passes is kept."""
        self.rows, self.oldest = [], oldest
        return rows.map(keep_in(self.rows))


@dataclass(frozen=True)
class Learners:
    """The groups that learn from scored rows. Without a reference or a critic that step is left out.

    `lent` says what is done with devices that generation has no more work for while others still generate.
    """

    actor: WorkerGroup
    reference: WorkerGroup | None = None
    critic: WorkerGroup | None = None  # with a model of its own
    lent: Lent = "nothing"  # devices to; to "training" = with the reference
    shown: Shown = field(default_factory=dict)  # of the first rows of the last step, for people
    taken: Taken | None = None  # where rows are to be kept

    def learn(self, rows: Stream, step: int, oldest: int | None = None) -> dict[str, float]:
        """Train on all rows of the stream but those of weights before the version `oldest`; metrics named
        `train/...`."""
        self.shown.clear()
        rows = rows if self.taken is None else self.taken.note(rows, oldest)
        if self.lent == "training":
            trained = self.actor.stage("train_shared", rows, route="shared", weight=unit_weight, step=step)
            trained.collect()
            return self._told(joined(trained.result))
        judged = self._judged(rows, self.reference) if self.reference else rows
        if self.critic is None:
            return self._train(self.actor, judged, step, oldest)
        valued: list[Experience] = self.critic.stage("values", judged, route="broadcast").collect()
        metrics = self._train(self.critic, Stream.of([valued]), step, oldest)
        return metrics | self._train(self.actor, Stream.of([valued]), step, oldest)

    def _judged(self, rows: Stream, reference: WorkerGroup) -> Stream:
        if self.lent == "reference":
            return reference.stage("logprobs", rows, route="shared", weight=unit_weight, shared=True)
        return reference.stage("logprobs", rows, route="broadcast")

    def _train(self, group: WorkerGroup, rows: Stream, step: int, oldest: int | None) -> dict[str, float]:
        trained = group.stage("train", rows, route="broadcast", step=step, oldest=oldest)
        trained.collect()
        return self._told(trained.result)

    def _told(self, reports: list[TrainReport]) -> dict[str, float]:
        for report in reports:
            show(self.shown, report.shown)
        return merge_reports(reports)
