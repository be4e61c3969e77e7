"""The reward role: scores finished samples in killable processes while others are generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_core.api.reward import RewardItem
from rlinf_core.errors import RewardError
from rlinf_core.plugins import plugins
from rlinf_core.roles.reward_pool import PoolReward, RewardPool
from rlinf_core.types import OWN, Sample
from rlinf_core.worker import Worker, WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig


@dataclass
class RewardReport:
    """Verdicts of one step's samples."""

    verdicts: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    failures: list[str] = field(default_factory=list)  # why samples could not be scored


class RewardWorker(Worker):
    """Scores samples with the run's weighted rewards."""

    def __init__(self, context: WorkerContext, config: RunConfig) -> None:
        super().__init__(context)
        self.limit = config.reward_pool.max_error_rate
        self.pool = RewardPool(
            [
                PoolReward(
                    name=term.component.name,
                    target=plugins().get(term.component.kind, term.component.name).target,
                    config=term.component.config,
                    weight=term.weight,
                )
                for term in config.rewards
            ],
            workers=config.reward_pool.workers,
            timeout_s=config.reward_pool.timeout_s,
            retries=config.reward_pool.retries,
        )

    @stage
    def score(
        self, chunks: Iterator[list[Sample]], *, before: RewardReport | None = None
    ) -> Generator[list[Sample], None, RewardReport]:
        """Fill `reward`, `reward_parts` or `error`, but of those with an error; returns a `RewardReport`,
        which goes on where the one `before` in the same step ended.

        Raises `RewardError` when more than `max_error_rate` of a step could not be scored.
        """
        report = before or RewardReport()
        counts = Counter(report.verdicts)
        failures = report.failures
        for chunk in chunks:
            whole = [(policy, sample) for policy, sample in _said(chunk) if sample.error is None]
            scored = self.pool.score([_item(policy, sample) for policy, sample in whole])
            for (_, sample), score in zip(whole, scored, strict=True):
                sample.reward, sample.reward_parts, sample.error = score.value, score.parts, score.error
                counts.update(score.verdicts.values())
                if score.error is not None:
                    failures.append(score.error)
            report.samples += len(whole)
            yield chunk
        if len(failures) > self.limit * report.samples:
            raise RewardError(
                f"{len(failures)} of {report.samples} samples could not be scored "
                f"(reward_pool.max_error_rate is {self.limit:g}); the first: {failures[0]}"
            )
        report.verdicts = dict(counts)
        return report

    def close(self) -> None:
        """End the scoring processes."""
        self.pool.close()


def _said(chunk: Sequence[Sample]) -> Iterator[tuple[str, Sample]]:
    """By policies."""
    for sample in chunk:
        yield OWN, sample
        yield from sample.others.items()


def _item(policy: str, sample: Sample) -> RewardItem:
    """Of a response with tools, what came after their last answer; the whole is beside it."""
    prompt = sample.prompt
    beside: dict[str, Any] = {}
    if sample.tool_calls is not None:
        beside = {"transcript": sample.text, "tool_calls": sample.tool_calls}
        beside |= {"returned": sample.returned, "policy": policy}
    return RewardItem(
        prompt=prompt.text,
        response=sample.text if sample.reply is None else sample.reply,
        answer=prompt.answer,
        meta={**prompt.meta, **beside},
        finish=sample.finish,
    )
