"""Initial states -> episodes -> learn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.comm.stream import Stream
from rlinf_core.flows.flow import Flow, StepResult, keep_in, row_metrics, warnings
from rlinf_core.roles.weights import WeightSync

if TYPE_CHECKING:
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
    ) -> None:
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
        rows: list[Experience] = []
        selected = self.selection.gather(requests, self._round) if self.selection else None
        if selected is None:
            acting = self.rollout.call("serve")
            episodes = acting.guard(self.environment.stage("rollout", requests.first()))
            learned = self.learners.learn(episodes.map(keep_in(rows)), step)
            acting.wait()
            rounds = [episodes.result]
            self._count(episodes.result)
        else:
            rows, rounds = selected.rows, selected.results
            learned = self.learners.learn(Stream.of([selected.kept]), step) | selected.metrics
        rows.sort(key=lambda row: (row.group, row.replica))
        metrics = row_metrics(rows) | _episode_metrics(rows, rounds) | learned
        metrics["time/sync"] = synced - began
        return StepResult(rows, metrics, warnings(metrics) + self._deaths())

    def evaluate(self, requests: Stream) -> list[Experience]:
        """Episodes of the current weights."""
        self.sync()
        rows, _ = self._round(requests, greedy=self.eval_greedy)
        return sorted(rows, key=lambda row: (row.group, row.replica))

    def _round(
        self, groups: Stream, earlier: Sequence[list[Any]] = (), *, greedy: bool = False
    ) -> tuple[list[Experience], list[Any]]:
        """Every episode of these requests, and what each rank of environments reports."""
        acting = self.rollout.call("serve")
        episodes = acting.guard(self.environment.stage("rollout", groups, greedy=greedy))
        rows: list[Experience] = episodes.collect()
        acting.wait()
        self._count(episodes.result)
        return rows, episodes.result

    def counts(self) -> dict[str, float]:
        """Processes of environments that were started again, and what became of their episodes."""
        counts, self._counts = self._counts, dict.fromkeys(COUNTS, 0.0)
        return counts

    def _count(self, reports: Sequence[EnvironmentReport]) -> None:
        for name, field in COUNTS.items():
            self._counts[name] += sum(getattr(report, field) for report in reports)

    def _deaths(self) -> list[str]:
        died = self._counts["env/restarts"]
        return [f"{died:.0f} processes of environments died, hung or failed (RUN/logs)"] if died else []


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
