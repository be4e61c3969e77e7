"""Prompts -> rollout -> reward -> learn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlinf_core.flows.flow import Flow, StepResult, keep_in, row_metrics
from rlinf_core.roles.weights import WeightSync

if TYPE_CHECKING:
    from rlinf_core.comm.stream import Stream
    from rlinf_core.flows.learning import Learners
    from rlinf_core.roles.reward import RewardReport
    from rlinf_core.types import Experience, Sampling
    from rlinf_core.worker import WorkerGroup


class ReasoningFlow(Flow):
    """Reinforcement learning of a language model on verifiable or scored tasks."""

    def __init__(
        self,
        rollout: WorkerGroup,
        reward: WorkerGroup,
        learners: Learners,
        sampling: Sampling,
        eval_sampling: Sampling,
    ) -> None:
        self.rollout = rollout
        self.reward = reward
        self.learners = learners
        self.sync = WeightSync(learners.actor, rollout)
        self.sampling = sampling
        self.eval_sampling = eval_sampling

    def step(self, requests: Stream, step: int) -> StepResult:
        """Generation, scoring and what follows overlap wherever the workers sit apart."""
        began = time.perf_counter()
        self.sync()
        synced = time.perf_counter()
        samples = self.rollout.stage("generate", requests, sampling=self.sampling)
        scored = self.reward.stage("score", samples)
        rows: list[Experience] = []
        learned = self.learners.learn(scored.map(keep_in(rows)), step)
        rows.sort(key=lambda row: (row.group, row.replica))
        reward_report: RewardReport = scored.result[0]
        metrics = row_metrics(rows) | learned
        metrics["time/sync"] = synced - began
        for verdict, count in reward_report.verdicts.items():
            metrics[f"train/verdict_{verdict}"] = float(count)
        return StepResult(rows, metrics, _warnings(metrics))

    def evaluate(self, requests: Stream) -> list[Experience]:
        """Scored samples of the current weights under the evaluation sampling."""
        self.sync()
        samples = self.rollout.stage("generate", requests, sampling=self.eval_sampling)
        rows: list[Experience] = self.reward.stage("score", samples).collect()
        return sorted(rows, key=lambda row: (row.group, row.replica))


def _warnings(metrics: dict[str, float]) -> list[str]:
    """What a person should know of this step."""
    found = []
    if metrics.get("train/zero_variance_groups", 0.0) == 1.0:
        found.append("every group has equal rewards: this step had no gradient (task too easy or too hard?)")
    if metrics.get("train/truncated", 0.0) > 0.5:
        found.append(f"{metrics['train/truncated']:.0%} of the responses were cut at sampling.max_new_tokens")
    if metrics.get("train/logprob_mismatch", 0.0) > 0.05:
        found.append(
            f"rollout and trainer log-probabilities differ by {metrics['train/logprob_mismatch']:.3f} a token"
        )
    if metrics.get("train/skipped_steps", 0.0) > 0.0:
        found.append("a non-finite gradient was not applied")
    return found
