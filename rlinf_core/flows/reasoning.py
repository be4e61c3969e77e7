"""Prompts -> rollout -> reward -> learn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlinf_core.comm.stream import Stream
from rlinf_core.flows.flow import Flow, Played, StepResult, keep_in, row_metrics, warnings, work_apart
from rlinf_core.flows.selection import unselected
from rlinf_core.policies import of_all
from rlinf_core.roles.weight_sync import WeightSync

if TYPE_CHECKING:
    from rlinf_core.flows.flow import Requests
    from rlinf_core.flows.learning import Learners
    from rlinf_core.flows.selection import Selection
    from rlinf_core.roles.reward import RewardReport
    from rlinf_core.types import Experience, Request, Sample, Sampling
    from rlinf_core.worker import WorkerGroup


class ReasoningFlow(Flow):
    """Reinforcement learning of a language model on verifiable or scored tasks.

    With a `selection`, groups are selected before anything else is done with them; with
    `greedy_baseline`, each row knows the reward of the greedy response to its prompt.
    """

    def __init__(
        self,
        rollout: WorkerGroup,
        reward: WorkerGroup,
        learners: Learners,
        sampling: Sampling,
        eval_sampling: Sampling,
        *,
        selection: Selection | None = None,
        greedy_baseline: bool = False,
    ) -> None:
        self.rollout = rollout
        self.reward = reward
        self.learners = learners
        self.sync = WeightSync(learners.actor, rollout)
        self.sampling = sampling
        self.eval_sampling = eval_sampling
        self.selection = selection
        self.greedy_baseline = greedy_baseline

    def step(self, requests: Requests, step: int) -> StepResult:
        """Generation, scoring and what follows overlap wherever the workers sit apart."""
        began = time.perf_counter()
        self.sync()
        synced = time.perf_counter()
        if self.selection is not None:
            result = self.train(self.play(requests), step)
        else:
            rows: list[Experience] = []
            scored = self._scored(requests.first())
            learned = self.learners.learn(scored.map(keep_in(rows)), step)
            rows.sort(key=lambda row: (row.group, row.replica))
            result = _told(rows, learned | _verdicts(scored.result))
        result.metrics |= {"time/sync": synced - began, **self.sync.metrics}
        return result

    @property
    def apart(self) -> bool:
        """Rewards are scored in processes of their own."""
        return work_apart(self.learners.actor, self.rollout)

    def play(self, requests: Requests) -> Played:
        """Responses with their rewards."""
        if self.selection is None:
            found = unselected(*self._round(requests.first(), ()))
        else:
            found = self.selection.gather(requests, self._round)
        return Played(found.rows, found.kept, found.metrics | _verdicts(found.results[-1]))

    def train(self, played: Played, step: int, oldest: int | None = None) -> StepResult:
        """Advantages and optimizer steps."""
        learned = self.learners.learn(Stream.of([played.kept]), step, oldest)
        return _told(played.rows, learned | played.metrics)

    def respond(self, asked: Sequence[Request]) -> list[Sample]:
        """Responses, or what each request asks for of one."""
        groups = [list(group) for _, group in itertools.groupby(asked, key=lambda request: request.group)]
        made = self.rollout.stage("generate", Stream.of(groups), sampling=self.sampling)
        samples: list[Sample] = made.collect()
        return samples

    def judge(self, samples: Sequence[Sample]) -> Played:
        """Responses that were made before, with their rewards."""
        ordered = sorted(samples, key=lambda sample: (sample.group, sample.replica))
        groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda sample: sample.group)]
        scored = self.reward.stage("score", Stream.of(groups))
        found = unselected(scored.collect(), scored.result)
        return Played(found.rows, found.kept, _verdicts(scored.result))

    def evaluate(self, requests: Stream) -> list[Experience]:
        """Scored samples of the current weights under the evaluation sampling."""
        self.sync()
        samples = self.rollout.stage("generate", requests, sampling=self.eval_sampling)
        rows: list[Experience] = self.reward.stage("score", samples).collect()
        return sorted(rows, key=lambda row: (row.group, row.replica))

    def _round(self, groups: Stream, earlier: Sequence[list[Any]]) -> tuple[list[Experience], list[Any]]:
        scored = self._scored(groups, earlier[-1][0] if earlier else None)
        return scored.collect(), scored.result

    def _scored(self, groups: Stream, before: RewardReport | None = None) -> Stream:
        """Responses to these requests with their rewards, and baselines where they are needed."""
        if not self.greedy_baseline:
            samples = self.rollout.stage("generate", groups, sampling=self.sampling)
            return self.reward.stage("score", samples, before=before)
        asked = list(groups)
        compare = _against(self._greedy(asked))
        samples = self.rollout.stage("generate", Stream.of(asked), sampling=self.sampling)
        return self.reward.stage("score", samples, before=before).map(compare)

    def _greedy(self, groups: Sequence[list[Request]]) -> list[Experience]:
        """One scored greedy response a group."""
        greedy = replace(self.sampling, temperature=0.0)
        firsts = Stream.of([group[:1] for group in groups])
        found: list[Experience] = self.reward.stage(
            "score", self.rollout.stage("generate", firsts, sampling=greedy)
        ).collect()
        return found


def _against(greedy: Sequence[Experience]) -> Callable[[list[Experience]], list[Experience]]:
    """A function for `Stream.map` that gives rows their group's baseline, or the error of it."""
    of_group = {row.group: row for row in greedy}

    def compare(chunk: list[Experience]) -> list[Experience]:
        for row in chunk:
            first = of_group[row.group]
            row.baseline = first.reward
            if first.error is not None and row.error is None:
                row.error = f"the greedy response to the same prompt could not be scored: {first.error}"
        return chunk

    return compare


def _told(rows: list[Experience], found: dict[str, float]) -> StepResult:
    metrics = row_metrics(rows) | found
    return StepResult(rows, metrics, [*warnings(metrics), *_cut(metrics), *_unscored(rows)])


def _verdicts(reports: Sequence[RewardReport]) -> dict[str, float]:
    return {f"train/verdict_{verdict}": float(count) for verdict, count in reports[0].verdicts.items()}


def _unscored(rows: list[Experience]) -> list[str]:
    errors = [row.error for row in of_all(rows) if row.error is not None]
    return (
        [f"{len(errors)} samples had no reward and were not trained; the first: {errors[0]}"]
        if errors
        else []
    )


def _cut(metrics: dict[str, float]) -> list[str]:
    share = metrics.get("train/truncated", 0.0)
    return [f"{share:.0%} of the responses were cut at sampling.max_new_tokens"] if share > 0.5 else []
