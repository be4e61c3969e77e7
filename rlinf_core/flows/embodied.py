"""Initial states -> episodes -> learn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rlinf_core.flows.flow import Flow, StepResult, keep_in, row_metrics
from rlinf_core.roles.weights import WeightSync

if TYPE_CHECKING:
    from rlinf_core.comm.stream import Stream
    from rlinf_core.flows.learning import Learners
    from rlinf_core.roles.environment import EnvironmentReport
    from rlinf_core.types import Experience, Trajectory
    from rlinf_core.worker import WorkerGroup


class EmbodiedFlow(Flow):
    """Reinforcement learning of a policy in simulators; the simulator gives the reward."""

    def __init__(
        self,
        environment: WorkerGroup,
        rollout: WorkerGroup,
        learners: Learners,
        *,
        eval_greedy: bool = False,
    ) -> None:
        self.environment = environment
        self.rollout = rollout
        self.learners = learners
        self.sync = WeightSync(learners.actor, rollout)
        self.eval_greedy = eval_greedy

    def step(self, requests: Stream, step: int) -> StepResult:
        """Whole episodes of the current weights, then training on all of them."""
        began = time.perf_counter()
        self.sync()
        synced = time.perf_counter()
        rows: list[Experience] = []
        acting = self.rollout.call("serve")
        episodes = acting.guard(self.environment.stage("rollout", requests))
        learned = self.learners.learn(episodes.map(keep_in(rows)), step)
        acting.wait()
        rows.sort(key=lambda row: (row.group, row.replica))
        metrics = row_metrics(rows) | _episode_metrics(rows, episodes.result) | learned
        metrics["time/sync"] = synced - began
        return StepResult(rows, metrics, _warnings(metrics))

    def evaluate(self, requests: Stream) -> list[Experience]:
        """Episodes of the current weights."""
        self.sync()
        acting = self.rollout.call("serve")
        episodes = self.environment.stage("rollout", requests, greedy=self.eval_greedy)
        rows: list[Experience] = acting.guard(episodes).collect()
        acting.wait()
        return sorted(rows, key=lambda row: (row.group, row.replica))


def _episode_metrics(rows: Sequence[Experience], reports: Sequence[EnvironmentReport]) -> dict[str, float]:
    episodes = cast("Sequence[Trajectory]", rows)
    seconds = max(report.seconds for report in reports)
    return {
        "train/success": sum(episode.success for episode in episodes) / max(1, len(episodes)),
        "util/env_steps_per_s": sum(report.actions for report in reports) / max(seconds, 1e-9),
    }


def _warnings(metrics: dict[str, float]) -> list[str]:
    """What a person should know of this step."""
    found = []
    if metrics.get("train/zero_variance_groups", 0.0) == 1.0:
        found.append("every group has equal returns: this step had no gradient (task too easy or too hard?)")
    if metrics.get("train/logprob_mismatch", 0.0) > 0.05:
        found.append(
            "log-probabilities of acting and of training differ by "
            f"{metrics['train/logprob_mismatch']:.3f} a decision"
        )
    if metrics.get("train/skipped_steps", 0.0) > 0.0:
        found.append("a non-finite gradient was not applied")
    return found
