"""Validation on held-out prompts, or in episodes from held-out initial states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlinf_core.evaluation.results import Result, asked_how, asked_on, estimates, finite, problems_of
from rlinf_core.policies import of_policy, other_names
from rlinf_core.run.metrics import JsonLines
from rlinf_core.run.output import EVALUATIONS
from rlinf_core.types import EpisodeRequest, Experience, Request, Trajectory

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.run.source import Source

Rows = Literal["eval", "train", "all"]
SPLITS: Sequence[Rows] = ("eval", "train", "all")


@dataclass(frozen=True)
class Wanted:
    """What to ask of a policy, beside the settings of its task."""

    responses: int = 1  # a problem
    ks: tuple[int, ...] = ()  # of pass@k; () = 1 and as many as there are responses
    split: Rows = "eval"  # rows of the data


@dataclass(frozen=True)
class Asked:
    """The requests of an evaluation, one chunk a problem, and what two that are alike agree about."""

    chunks: Sequence[Sequence[Request | EpisodeRequest]]
    on: Mapping[str, Any]  # Any: JSON values


class Scores:
    """How each problem went at each evaluation of a run, in `RUN/evaluations.jsonl`."""

    def __init__(self, config: RunConfig, source: Source, resumed: int | None) -> None:
        self._config = config
        self._asked = Asked(list(source.eval()), asked_on(config, "eval", source.held_out_rows()))
        self._file = JsonLines(Path(config.output) / EVALUATIONS, resumed)

    def take(self, step: int, rows: Sequence[Experience]) -> dict[str, float]:
        """Write it down; returns metrics named `eval/...`."""
        result = summary(self._config, self._asked, rows, Wanted())
        result.of |= {"run": self._config.output, "step": step}
        self._file.write({"step": step, **result.as_dict()})
        return eval_metrics(rows, primary(self._config))


def summary(config: RunConfig, asked: Asked, rows: Sequence[Experience], wanted: Wanted) -> Result:
    """The result of scored rows."""
    found = {name.removeprefix("eval/"): value for name, value in eval_metrics(rows, primary(config)).items()}
    problems = problems_of(asked.chunks, rows, primary(config))
    ks = wanted.ks or ((1, wanted.responses) if wanted.responses > 1 else ())
    known = estimates(problems, ks, score_name(config))
    found = {name: found.get(name, value.mean) for name, value in known.items()} | _parts(rows) | found
    intervals = {name: each for name, value in known.items() if (each := finite(value)) is not None}
    how = asked_how(config, wanted.responses)
    return Result({"model": model_name(config)}, dict(asked.on), how, problems, found, intervals)


def primary(config: RunConfig) -> str:
    """The reward that scores; "" where a simulator does."""
    return config.rewards[0].component.name if config.rewards else ""


def score_name(config: RunConfig) -> str:
    """What a score is called."""
    return "accuracy" if config.simulator is None else "success"


def model_name(config: RunConfig) -> str:
    """What a person calls the model: where it lies, or its plugin."""
    settings = config.model.config
    named = [str(value) for key in ("path", "preset") if (value := getattr(settings, key, ""))]
    return next(iter(named), config.model.name)


def _parts(rows: Sequence[Experience]) -> dict[str, float]:
    """Means of the parts of the reward, where there are several."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.error is None and row.reward is not None:
            for name, value in row.reward_parts.items():
                values.setdefault(f"reward/{name}", []).append(value)
    return {name: sum(each) / len(each) for name, each in sorted(values.items())} if len(values) > 1 else {}


def eval_metrics(rows: Sequence[Experience], primary: str) -> dict[str, float]:
    """Metrics `eval/...` of evaluation rows, means over those that could be scored.

    `eval/accuracy` is the mean of the first reward (`primary`) before weighting; for episodes there is
    `eval/success` instead, the share that succeeded. Those of policies beside the run's own are named
    `eval/POLICY/...`.
    """
    metrics = _metrics(rows, primary)
    for name in other_names(rows):
        of_it = _metrics(of_policy(rows, name), primary)
        metrics |= {f"eval/{name}/{key.removeprefix('eval/')}": value for key, value in of_it.items()}
    return metrics


def _metrics(rows: Sequence[Experience], primary: str) -> dict[str, float]:
    scored = [row for row in rows if row.error is None and row.reward is not None]
    metrics = {"eval/samples": float(len(rows)), "eval/unscored": float(len(rows) - len(scored))}
    if scored:
        count = len(scored)
        episodes = [row for row in scored if isinstance(row, Trajectory)]
        if episodes:
            metrics["eval/success"] = sum(episode.success for episode in episodes) / count
        else:
            metrics["eval/accuracy"] = sum(row.reward_parts.get(primary, 0.0) for row in scored) / count
        metrics["eval/reward"] = sum(float(row.reward or 0.0) for row in scored) / count
        metrics["eval/response_length"] = sum(row.length for row in scored) / count
        metrics["eval/truncated"] = sum(row.finish == "length" for row in scored) / count
    return metrics
