"""Estimates, intervals and tests against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from rlinf_core.evaluation.statistics import (
    average,
    bounded,
    mcnemar,
    paired,
    pass_at_k,
    rate,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(8, 10, 0.490162, 0.943318), (0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (1, 1, 0.206549, 1.0)],
)
def test_a_share_has_the_interval_of_wilson(successes, count, low, high):
    found = wilson(successes, count)
    assert (found.mean, found.low, found.high) == pytest.approx((successes / count, low, high), abs=1e-6)


@pytest.mark.parametrize(
    ("responses", "right", "k", "chance"),
    [
        (5, 2, 3, 0.9),  # of the 10 ways to take 3 of 5, one has neither of the 2 that are right
        (4, 1, 2, 0.5),
        (4, 0, 4, 0.0),
        (4, 1, 4, 1.0),
        (8, 3, 1, 0.375),
        (8, 6, 3, 1.0),  # only two are wrong
    ],
)
def test_pass_at_k_is_the_share_of_choices_with_a_right_response(responses, right, k, chance):
    assert pass_at_k(responses, right, k) == pytest.approx(chance, abs=1e-15)


def test_responses_to_one_problem_count_as_one_observation_of_the_error():
    found = rate([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    error = 0.5 / math.sqrt(3)  # problem means 0.5, 1 and 0: standard deviation 0.5
    assert (found.mean, found.low) == (0.5, 0.0)
    assert found.high == 1.0  # 0.5 + 1.96 * 0.289 is more
    unbounded = average([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert unbounded.high - unbounded.mean == pytest.approx(1.959964 * error, abs=1e-6)
    alone = average([[1.0], [0.0], [1.0], [1.0], [0.0], [0.0]])
    assert alone.high - alone.low < unbounded.high - unbounded.low


def test_problems_with_more_scored_responses_weigh_more():
    found = average([[1.0], [0.0, 0.0, 1.0]])
    # residuals 1 - 0.5 and 1 - 1.5: their squares add up to 0.5, times 2 / 1; the root, over 4 values
    assert (found.mean, found.high - found.mean) == pytest.approx((0.5, 1.959964 * 0.25), abs=1e-6)


def test_all_or_nothing_problems_have_the_interval_of_a_share():
    assert rate([[1.0, 1.0], [0.0, 0.0]]) == wilson(1, 2)
    assert rate([[1.0], [1.0]]) == wilson(2, 2)


def test_values_beyond_zero_and_one_have_an_unbounded_interval():
    assert bounded([[-3.0], [1.0]]) == average([[-3.0], [1.0]])
    assert bounded([[0.0], [1.0]]) == wilson(1, 2)
    assert average([[2.0]]).low == -math.inf


@pytest.mark.parametrize(
    ("better", "worse", "p"), [(1, 6, 0.125), (5, 0, 0.0625), (3, 3, 1.0), (0, 0, 1.0), (9, 2, 67 * 2 / 2048)]
)
def test_mcnemar_is_the_exact_binomial_test_of_the_problems_that_differ(better, worse, p):
    assert mcnemar(better, worse) == pytest.approx(p, abs=1e-15)


def test_pairs_of_right_and_wrong_are_tested_by_mcnemar():
    first, second = [0.0] * 6 + [1.0] * 4, [1.0] * 6 + [0.0] + [1.0] * 3
    found = paired(first, second)
    assert (found.mean, found.better, found.worse, found.equal) == (0.5, 6, 1, 3)
    assert (found.test, found.p) == ("McNemar", 0.125)
    assert -0.2 < found.low < 0.5 < found.high <= 1.0


def test_other_pairs_are_tested_by_a_bootstrap_that_its_seed_repeats():
    first = [0.25, 0.5, 0.75, 0.5]
    same = paired(first, first)
    assert (same.mean, same.low, same.high, same.p, same.equal) == (0.0, 0.0, 0.0, 1.0, 4)
    more = paired(first, [value + 0.25 for value in first])
    assert (more.low, more.high, more.test) == (0.25, 0.25, "bootstrap")
    assert more.p == pytest.approx(1 / 10_001)
    mixed = [0.5, 0.25, 1.0, 0.5]
    assert paired(first, mixed, seed=3) == paired(first, mixed, seed=3)


def test_the_bootstrap_interval_is_near_the_normal_one_for_many_problems():
    first = [((7 * i) % 11) / 10 for i in range(400)]
    second = [((5 * i) % 11) / 10 for i in range(400)]
    differences = [[b - a] for a, b in zip(first, second, strict=True)]
    normal, found = average(differences), paired(first, second)
    assert (found.low, found.high) == pytest.approx((normal.low, normal.high), abs=0.006)
