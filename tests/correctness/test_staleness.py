"""Rows that are made some steps ahead: no older than allowed, the same wherever they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlinf_core.config.check_algorithm import algorithm_problems
from rlinf_core.plugins import plugins
from rlinf_core.run.ahead import RunAhead

GRPO = ("algo=grpo", "algo.group_size=2")


@pytest.mark.parametrize("words", [GRPO, (*GRPO, "train.mini_batches=2", "train.update_epochs=2")])
def test_to_play_and_then_to_train_is_a_step(tiny_run: Callable[..., Any], words: tuple[str, ...]) -> None:
    whole, halves = tiny_run(*words), tiny_run(*words)
    for step in range(3):
        expected = whole.step(step)
        flow = halves.graph.flow
        flow.sync()
        found = flow.train(flow.play(halves.source.train(step)), step, flow.sync.version)
        assert found.metrics.pop("train/stale_rows") == 0.0
        expected.metrics.pop("time/sync")
        assert found.metrics == expected.metrics
    theirs = whole.weights()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in halves.weights().items())


def ran(run: Any, lag: int, steps: int = 5) -> list[tuple[set[int], float]]:
    """The versions of each step's rows, and the mean ratio of the policy to that which made them."""
    ahead = RunAhead(lag, steps, run.source.train)
    found = [ahead.step(run.graph.flow, step) for step in range(steps)]
    return [({row.weight_version for row in each.rows}, each.metrics["train/ratio"]) for each in found]


@pytest.mark.parametrize("lag", [1, 2])
def test_rows_lag_as_many_steps_as_they_may_and_the_loss_knows_it(
    tiny_run: Callable[..., Any], lag: int
) -> None:
    found = ran(tiny_run(*GRPO), lag)
    assert [versions for versions, _ in found] == [{max(0, step - lag)} for step in range(5)]
    assert found[0][1] == pytest.approx(1.0, abs=1e-6)
    assert max(abs(ratio - 1.0) for _, ratio in found) > 1e-3


def test_episodes_lag_too(embodied_run: Callable[..., Any]) -> None:
    found = ran(embodied_run("algo=ppo", "optimizer.lr=1e-2"), 1)
    assert [versions for versions, _ in found] == [{max(0, step - 1)} for step in range(5)]


def test_selected_groups_lag_too(tiny_run: Callable[..., Any]) -> None:
    run = tiny_run("algo=dapo", "algo.group_size=2", reward="some")
    found = ran(run, 1, steps=3)
    assert [versions for versions, _ in found] == [{0}, {0}, {1}]


def test_what_has_no_correction_for_old_rows_is_refused(settings: Callable[..., Any]) -> None:
    config = settings(*GRPO, "train.max_staleness=2")
    spec = plugins().get("algorithms", "grpo")
    blind = replace(spec, needs=lambda options: replace(spec.needs(options), off_policy=False))
    (problem,) = algorithm_problems(config, {"algo": blind})
    assert problem.startswith("train.max_staleness: 'grpo' trains only on samples of the present weights")
    assert list(algorithm_problems(config, {"algo": spec})) == []
    again = settings(*GRPO, "train.max_staleness=2", "train.old_logprobs=recompute")
    (problem,) = algorithm_problems(again, {"algo": spec})
    assert "recompute leaves nothing in the loss that corrects for the age of samples" in problem
    weighed = replace(again, algo=replace(again.algo, config=replace(again.algo.config, decoupled=True)))
    assert list(algorithm_problems(weighed, {"algo": spec})) == []
