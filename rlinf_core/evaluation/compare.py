"""Compares evaluations problem by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlinf_core.config.dump import diff
from rlinf_core.errors import DataError
from rlinf_core.evaluation.results import Problem, Result
from rlinf_core.evaluation.statistics import Difference, Estimate, bounded, paired

By = Literal["score", "reward"]


@dataclass(frozen=True)
class Compared:
    """One result on the problems that all have, and how much better it is than the first."""

    name: str
    value: Estimate
    left_out: int  # problems that another has not, or that one could not score
    difference: Difference | None  # None of the first


@dataclass(frozen=True)
class Comparison:
    """Results on the same problems; the first is what the others are compared with."""

    by: By
    problems: int
    results: Sequence[Compared]
    how: Mapping[
        str, Sequence[Any]
    ]  # what differs in how responses were drawn -> of each result; JSON values

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        tree: dict[str, Any] = asdict(self)
        return tree


def compare(results: Mapping[str, Result], by: By = "score", seed: int = 0) -> Comparison:
    """Results by name. Raises `DataError` for those that are about different things."""
    names = list(results)
    _refuse_unlike(results)
    known = {name: _values(result.problems, by) for name, result in results.items()}
    common = [problem for problem in known[names[0]] if all(problem in each for each in known.values())]
    if not common:
        raise DataError(
            f"{' and '.join(names)} have no problem in common; evaluate them with the same --seed and "
            "--samples"
        )
    first = [_mean(known[names[0]][problem]) for problem in common]
    compared = []
    for name in names:
        values = [known[name][problem] for problem in common]
        against = None if name == names[0] else paired(first, [_mean(each) for each in values], seed)
        left_out = len(results[name].problems) - len(common)
        compared.append(Compared(name, bounded(values), left_out, against))
    return Comparison(by, len(common), compared, _how(list(results.values())))


def _refuse_unlike(results: Mapping[str, Result]) -> None:
    (name, first), *others = results.items()
    for other, result in others:
        found = diff(first.on, result.on)
        if found:
            lines = "; ".join(f"{key}: {old!r} and {new!r}" for key, (old, new) in found.items())
            raise DataError(
                f"{name} and {other} are not about the same problems, scored in the same way ({lines}); "
                "evaluate both with the same data, split and rewards"
            )


def _values(problems: Sequence[Problem], by: By) -> dict[int, list[float]]:
    """What could be scored of each problem."""
    found = {}
    for each in problems:
        values = [value for value in (each.scores if by == "score" else each.rewards) if value is not None]
        if values:
            found[each.problem] = values
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _how(results: Sequence[Result]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for result in results for key in result.how)
    told = {key: [result.how.get(key) for result in results] for key in keys}
    return {key: values for key, values in told.items() if any(value != values[0] for value in values)}
