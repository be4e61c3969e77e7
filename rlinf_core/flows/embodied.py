"""Initial states -> episodes -> learn."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.comm.stream import Stream
from rlinf_core.flows.cycle import Cycle
from rlinf_core.flows.flow import Flow, Played, StepResult, keep_in, row_metrics, warnings, work_apart
from rlinf_core.flows.selection import unselected
from rlinf_core.roles.weight_sync import WeightSync

if TYPE_CHECKING:
    from rlinf_core.flows.cycle import Mender
    from rlinf_core.flows.flow import Requests
    from rlinf_core.flows.learning import Learners
    from rlinf_core.flows.selection import Selection
    from rlinf_core.roles.environment import EnvironmentReport
    from rlinf_core.types import Experience, Trajectory
    from rlinf_core.worker import WorkerGroup


COUNTS = {  # metric -> field of the ranks' reports
    "env/restarts": "restarts",
    "env/lost_episodes": "lost",
    "env/dropped_episodes": "dropped",
}


class EmbodiedFlow(Flow):
    """Reinforcement learning of a policy in simulators; the simulator gives the reward."""

    def __init__(
        self,
        environment: WorkerGroup,
        rollout: WorkerGroup,
        learners: Learners,
        *,
        eval_greedy: bool = False,
        selection: Selection | None = None,
        mender: Mender | None = None,
    ) -> None:
        self.cycle = Cycle(environment, rollout, mender)
        self.environment = environment
        self.rollout = rollout
        self.learners = learners
        self.sync = WeightSync(learners.actor, rollout)
        self.eval_greedy = eval_greedy
        self.selection = selection
        self._counts = dict.fromkeys(COUNTS, 0.0)

    def step(self, requests: Requests, step: int) -> StepResult:
        """Whole episodes of the current weights, then training on all of them, or on the groups that the
        algorithm selects."""
        began = time.perf_counter()
        self.sync()
        synced = time.perf_counter()
        if self.selection is not None:
            result = self.train(self.play(requests), step)
        else:
            rows: list[Experience] = []
            episodes = self.cycle.play(requests.first())
            learned = self.learners.learn(episodes.map(keep_in(rows)), step)
            rows.sort(key=lambda row: (row.group, row.replica))
            self._add(_counts([episodes.result]))
            result = self._told(rows, _episode_metrics(rows, [episodes.result]) | learned)
        result.metrics |= {"time/sync": synced - began, **self.sync.metrics}
        return result

    @property
    def apart(self) -> bool:
        """Neither environments nor the policy that acts live where training happens."""
        return work_apart(self.learners.actor, self.environment, self.rollout)

    def play(self, requests: Requests) -> Played:
        """Whole episodes."""
        if self.selection is None:
            found = unselected(*self._round(requests.first()))
        else:
            found = self.selection.gather(requests, self._round)
        metrics = _episode_metrics(found.rows, found.results) | found.metrics
        return Played(found.rows, found.kept, metrics, _counts(found.results))

    def train(self, played: Played, step: int, oldest: int | None = None) -> StepResult:
        """Advantages and optimizer steps."""
        learned = self.learners.learn(Stream.of([played.kept]), step, oldest)
        self._add(played.counts)
        return self._told(played.rows, learned | played.metrics)

    def evaluate(self, requests: Stream) -> list[Experience]:
        """Episodes of the current weights."""
        self.sync()
        rows, reports = self._round(requests, greedy=self.eval_greedy)
        self._add(_counts([reports]))
        return sorted(rows, key=lambda row: (row.group, row.replica))

    def _round(
        self, groups: Stream, earlier: Sequence[list[Any]] = (), *, greedy: bool = False
    ) -> tuple[list[Experience], list[Any]]:
        """Every episode of these requests, and what each rank of environments reports."""
        episodes = self.cycle.play(groups, greedy=greedy)
        rows: list[Experience] = episodes.collect()
        return rows, episodes.result

    def counts(self) -> dict[str, float]:
        """Processes of environments that were started again, and what became of their episodes."""
        counts, self._counts = self._counts, dict.fromkeys(COUNTS, 0.0)
        return counts

    def _add(self, counts: Mapping[str, float]) -> None:
        for name, count in counts.items():
            self._counts[name] += count

    def _told(self, rows: list[Experience], found: dict[str, float]) -> StepResult:
        metrics = row_metrics(rows) | found
        return StepResult(rows, metrics, warnings(metrics) + self._deaths())

    def _deaths(self) -> list[str]:
        died = self._counts["env/restarts"]
        return [f"{died:.0f} processes of environments died, hung or failed (RUN/logs)"] if died else []


def _counts(rounds: Sequence[Sequence[EnvironmentReport]]) -> dict[str, float]:
    reports = [report for reports in rounds for report in reports]
    return {name: float(sum(getattr(report, field) for report in reports)) for name, field in COUNTS.items()}


def _episode_metrics(
    rows: Sequence[Experience], rounds: Sequence[Sequence[EnvironmentReport]]
) -> dict[str, float]:
    episodes = cast("Sequence[Trajectory]", rows)
    seconds = sum(max(report.seconds for report in reports) for reports in rounds)
    actions = sum(report.actions for reports in rounds for report in reports)
    played = [episode for episode in episodes if episode.error is None]
    return {
        "train/success": sum(episode.success for episode in played) / max(1, len(played)),
        "util/env_steps_per_s": actions / max(seconds, 1e-9),
    }
