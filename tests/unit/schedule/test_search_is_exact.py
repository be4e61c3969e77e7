"""The search against trying everything, on random problems: not a microsecond may be lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rlinf_core.schedule.blocks import contract
from rlinf_core.schedule.cost import CostModel
from rlinf_core.schedule.frontier import APART, SHARED
from rlinf_core.schedule.optimum import SPACE, Optimum
from rlinf_core.schedule.options import DENSE
from rlinf_core.schedule.tree import Rules
from rlinf_core.testing.plans import Problem, brute_force, random_problem


def optimum_of(problem: Problem, dense: int = DENSE) -> Optimum:
    return Optimum(contract(problem.graph), CostModel(problem.graph, problem.profile, problem.cluster), dense)


def found_by(optimum: Optimum) -> float:
    found = optimum.best()
    if not found:
        return math.inf
    best = found[0]
    assert Rules(optimum.blocks, optimum.cost, best.chunk).seconds(best.tree) == pytest.approx(best.seconds)
    return best.seconds


@pytest.mark.parametrize(
    ("components", "devices", "seeds"),
    [
        (1, 8, range(20)),
        (2, 2, range(40)),
        (2, 8, range(80)),
        (3, 3, range(50)),
        (3, 8, range(120)),
        (4, 4, range(10)),
        (4, 5, range(10, 14)),
    ],
)
def test_the_search_finds_what_trying_everything_finds(components: int, devices: int, seeds: range) -> None:
    for seed in seeds:
        problem = random_problem(seed, components, devices)
        expected = brute_force(problem)
        assert found_by(optimum_of(problem)) == pytest.approx(expected, rel=1e-9), seed


def test_where_some_work_ahead_the_search_finds_what_trying_everything_finds() -> None:
    for seed in range(60):
        problem = random_problem(seed, 3 if seed % 2 else 2, 5)
        last = problem.graph.components[-1].name
        edges = tuple(replace(edge, ahead=edge.target == last) for edge in problem.graph.edges)
        problem = replace(problem, graph=replace(problem.graph, edges=edges))
        assert found_by(optimum_of(problem)) == pytest.approx(brute_force(problem), rel=1e-9), seed


def test_five_components_on_eight_devices_lose_nothing() -> None:
    for seed in range(4):
        problem = random_problem(seed, 5, 8, plain=True)
        assert found_by(optimum_of(problem)) == pytest.approx(brute_force(problem), rel=1e-9), seed


def test_looking_only_at_numbers_of_devices_where_costs_change_loses_nothing() -> None:
    for seed in range(60):
        problem = random_problem(seed, 3, 8)
        assert found_by(optimum_of(problem, dense=1)) == pytest.approx(brute_force(problem), rel=1e-9), seed


def test_the_best_of_every_mode_is_found() -> None:
    for seed in range(60):
        problem = random_problem(seed, 3 if seed % 2 else 2, 6)
        optimum = optimum_of(problem)
        if len(optimum.blocks.blocks) == 1:
            continue
        same = optimum.collocated()
        apart, mixed = optimum.best(SPACE), optimum.best(mixed=True)
        assert (same.seconds if same else math.inf) == pytest.approx(brute_force(problem, SHARED)), seed
        assert (apart[0].seconds if apart else math.inf) == pytest.approx(brute_force(problem, APART)), seed
        expected = brute_force(problem, SHARED | APART)
        assert (mixed[0].seconds if mixed else math.inf) == pytest.approx(expected), seed
