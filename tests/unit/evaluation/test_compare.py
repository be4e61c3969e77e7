"""Results of evaluations as files, and compared with one another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.errors import DataError
from rlinf_core.evaluation.compare import compare
from rlinf_core.evaluation.results import Problem, Result, estimates, problems_of, read_result
from rlinf_core.types import Prompt, Request, Sample

ON = {"data": "sums", "split": "eval", "rows": "9 rows, fingerprint ab", "rewards": [{"name": "exact"}]}


def result(scores: dict[int, list[float | None]], on=ON, **how) -> Result:
    problems = [
        Problem(name, each, [s and 2 * s for s in each], [3] * len(each)) for name, each in scores.items()
    ]
    return Result({"model": "m"}, dict(on), how, problems)


def prompt(index: int) -> Prompt:
    return Prompt(index=index, token_ids=np.zeros(1, dtype=np.int64), text="")


def row(group: int, replica: int, score: float | None) -> Sample:
    return Sample(
        group=group,
        replica=replica,
        seed=0,
        mask=np.ones(2, dtype=bool),
        logprobs=np.zeros(2, dtype=np.float32),
        weight_version=0,
        prompt=prompt(10 + group),
        response_ids=np.zeros(2, dtype=np.int64),
        reward=None if score is None else 0.5 * score,
        reward_parts={} if score is None else {"exact": score, "short": 1.0},
        error="it hung" if score is None else None,
    )


def test_problems_are_told_in_the_order_asked_and_by_the_first_reward_before_its_weight():
    asked = [[Request(prompt(10 + group), group, r, 0) for r in (0, 1)] for group in (0, 1)]
    rows = [row(1, 1, 0.0), row(0, 1, None), row(1, 0, 1.0), row(0, 0, 1.0)]
    assert problems_of(asked, rows, "exact") == [
        Problem(10, [1.0, None], [0.5, None], [2, 2]),
        Problem(11, [1.0, 0.0], [0.5, 0.0], [2, 2]),
    ]


def test_what_could_not_be_scored_is_no_wrong_response():
    problems = [Problem(0, [1.0, None, 0.0], [1.0, None, 0.0]), Problem(1, [0.0, 0.0, 0.0], [0.0] * 3)]
    found = estimates(problems, (1, 2, 3), "accuracy")
    assert found["accuracy"].mean == 0.2
    assert found["pass@1"].mean == 0.25
    assert found["pass@2"].mean == 0.5
    assert found["pass@3"].mean == 0.0  # only the second problem has three
    assert estimates([Problem(0, [None], [None])], (1,), "accuracy") == {}


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    before = result({1: [1.0], 2: [None]}, temperature=0.5)
    assert read_result(json.dumps(before.as_dict()), tmp_path) == before
    for text in ("", "[]", "{}", json.dumps({"problems": [{"x": 1}]})):
        with pytest.raises(DataError, match="rlinf eval --output FILE"):
            read_result(text, tmp_path)


def test_results_are_compared_on_the_problems_that_all_could_score():
    a = result({1: [0.0], 2: [0.0], 3: [1.0], 4: [1.0]})
    b = result({5: [1.0], 3: [1.0], 2: [1.0], 1: [0.0], 4: [None]}, temperature=0)
    found = compare({"a": a, "b": b})
    assert found.problems == 3
    assert [each.value.mean for each in found.results] == pytest.approx([1 / 3, 2 / 3])
    assert [each.left_out for each in found.results] == [1, 2]
    difference = found.results[1].difference
    assert found.results[0].difference is None
    assert difference is not None
    assert (difference.better, difference.worse, difference.equal, difference.p) == (1, 0, 2, 1.0)
    assert found.how == {"temperature": [None, 0]}
    assert compare({"a": a, "b": b}, "reward").results[1].value.mean == pytest.approx(4 / 3)


def test_problems_with_several_responses_are_compared_by_their_means():
    found = compare({"a": result({1: [0.0, 1.0], 2: [1.0, 1.0]}), "b": result({1: [1.0], 2: [1.0]})})
    difference = found.results[1].difference
    assert difference is not None
    assert (difference.mean, difference.test, difference.better, difference.equal) == (
        0.25,
        "bootstrap",
        1,
        1,
    )


def test_results_about_different_things_are_refused():
    other = {**ON, "rows": "9 rows, fingerprint cd"}
    with pytest.raises(DataError, match="rows: '9 rows, fingerprint ab' and '9 rows, fingerprint cd'"):
        compare({"a": result({1: [1.0]}), "b": result({1: [1.0]}, other)})
    with pytest.raises(DataError, match="a and b have no problem in common"):
        compare({"a": result({1: [1.0]}), "b": result({2: [1.0]})})
