"""The result of an evaluation: what was asked, how, and how each problem went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.config.dump import plain
from rlinf_core.errors import DataError
from rlinf_core.evaluation.statistics import Estimate, bounded, pass_at_k, rate
from rlinf_core.types import EpisodeRequest, Trajectory

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.types import Experience, Request


@dataclass
class Problem:
    """How one problem went; None where a response could not be scored."""

    problem: int  # row of the data, or initial state of the simulator
    scores: list[float | None] = field(default_factory=list)  # before weighting; of episodes: success
    rewards: list[float | None] = field(default_factory=list)  # of episodes: returns
    lengths: list[int] = field(default_factory=list)


@dataclass
class Result:
    """An evaluation. Any: JSON values throughout."""

    of: dict[str, Any]  # model, and run and step where it is a checkpoint's
    on: dict[str, Any]  # what the problems are, and what scores them
    how: dict[str, Any]  # sampling, responses, seed
    problems: list[Problem]
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, list[float]] = field(default_factory=dict)  # of 95 %, for some of the metrics

    @property
    def label(self) -> str:
        """What a person calls it."""
        if "run" in self.of:
            return f"{self.of['run']} step {self.of['step']}"
        return str(self.of["model"])

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        tree: dict[str, Any] = asdict(self)
        return tree


def asked_on(config: RunConfig, split: str, known_by: str) -> dict[str, Any]:
    """What two results that can be compared agree about."""
    if config.simulator is not None:
        return {"simulator": config.simulator.name, "settings": plain(config.simulator.config)}
    return {
        "data": config.data.name if config.data else "",
        "split": split,
        "rows": known_by,
        "rewards": [{"name": term.component.name, "weight": term.weight} for term in config.rewards],
    }


def asked_how(config: RunConfig, responses: int) -> dict[str, Any]:
    """How responses are drawn."""
    temperature = config.eval.temperature
    how: dict[str, Any] = {"responses": responses, "seed": config.seed}
    if config.simulator is not None:
        return how | {"greedy": temperature == 0}
    sampling: dict[str, Any] = plain(config.sampling)
    return how | sampling | ({} if temperature is None else {"temperature": temperature})


def problems_of(
    asked: Sequence[Sequence[Request | EpisodeRequest]], rows: Sequence[Experience], primary: str
) -> list[Problem]:
    """How each problem went, in the order in which they were asked. `primary` is the reward that scores."""
    found = {chunk[0].group: Problem(_name(chunk[0])) for chunk in asked}
    for row in sorted(rows, key=lambda row: (row.group, row.replica)):
        problem = found[row.group]
        scored = row.error is None and row.reward is not None
        problem.scores.append(_score(row, primary) if scored else None)
        problem.rewards.append(float(row.reward or 0.0) if scored else None)
        problem.lengths.append(row.length)
    return list(found.values())


def estimates(problems: Sequence[Problem], ks: Sequence[int], score: str) -> dict[str, Estimate]:
    """The score, the reward and pass@k (right: a score of 1 or more) with their intervals; what no problem
    has enough responses for is left out."""
    scores = [known for each in problems if (known := [v for v in each.scores if v is not None])]
    rewards = [known for each in problems if (known := [v for v in each.rewards if v is not None])]
    if not scores:
        return {}
    found = {score: bounded(scores)}
    for k in ks:
        chances = [[pass_at_k(len(v), sum(s >= 1 for s in v), k)] for v in scores if len(v) >= k]
        if chances:
            found[f"pass@{k}"] = rate(chances)
    return found | {"reward": bounded(rewards)}


def finite(estimate: Estimate) -> list[float] | None:
    """The interval, where there is one."""
    return [estimate.low, estimate.high] if math.isfinite(estimate.low) else None


def read_result(text: str, where: Path) -> Result:
    """What `as_dict` gave, as JSON. Raises `DataError`."""
    try:
        stored: Mapping[str, Any] = json.loads(text)
        problems = [Problem(**each) for each in stored["problems"]]
        known = {name: stored[name] for name in ("of", "on", "how", "metrics", "intervals")}
        return Result(**known, problems=problems)
    except (ValueError, LookupError, TypeError) as err:
        raise DataError(
            f"{where}: not the result of an evaluation ({type(err).__name__}: {err}); "
            "`rlinf eval --output FILE` writes one"
        ) from err


def _name(request: Request | EpisodeRequest) -> int:
    return request.initial_state if isinstance(request, EpisodeRequest) else request.prompt.index


def _score(row: Experience, primary: str) -> float:
    if isinstance(row, Trajectory):
        return float(row.success)
    return float(row.reward_parts.get(primary, 0.0))
