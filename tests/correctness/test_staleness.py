"""Rows that are made some steps ahead: no older than allowed, the same wherever they are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlinf_core.config.check_staleness import staleness_problems
from rlinf_core.flows.parts import Parts
from rlinf_core.plugins import plugins
from rlinf_core.run.ahead import RunAhead
from rlinf_core.types import Sample

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


@pytest.mark.parametrize(
    ("lag", "expected"),
    [
        (2, [{0: 8}, {0: 8}, {0: 4, 1: 4}, {1: 4, 2: 4}, {2: 4, 3: 4}]),
        (3, [{0: 8}, {0: 8}, {0: 6, 1: 2}, {0: 4, 1: 2, 2: 2}, {1: 4, 2: 2, 3: 2}]),
    ],
)
def test_responses_in_parts_have_the_weights_of_every_step_until_then(
    tiny_run: Callable[..., Any], lag: int, expected: list[dict[int, int]]
) -> None:
    """Of 8 tokens, 4 (or 2) are left for each later step."""
    run = tiny_run(*GRPO, "sampling.min_new_tokens=8")
    ahead = RunAhead(lag, 5, run.source.train, Parts(8, lag))
    for step in range(5):
        result = ahead.step(run.graph.flow, step)
        assert len(result.rows) == 8
        for row in result.rows:
            assert isinstance(row, Sample)
            versions = row.weight_versions if row.weight_versions is not None else [row.weight_version] * 8
            assert dict(Counter(map(int, versions))) == expected[step], step
        assert result.metrics["train/stale_rows"] == 0
        assert result.metrics["train/staleness_max"] == step - min(expected[step])


def test_episodes_lag_too(embodied_run: Callable[..., Any]) -> None:
    found = ran(embodied_run("algo=ppo", "optimizer.lr=1e-2"), 1)
    assert [versions for versions, _ in found] == [{max(0, step - 1)} for step in range(5)]


def test_selected_groups_lag_too(tiny_run: Callable[..., Any]) -> None:
    run = tiny_run("algo=dapo", "algo.group_size=2", reward="some")
    found = ran(run, 1, steps=3)
    assert [versions for versions, _ in found] == [{0}, {0}, {1}]


def test_what_has_no_correction_for_old_rows_is_refused(settings: Callable[..., Any]) -> None:
    def problems(config: Any, off_policy: bool = True) -> list[str]:
        found = needs(config.algo.config)
        return list(staleness_problems(config, {}, replace(found, off_policy=off_policy)))

    needs = plugins().get("algorithms", "grpo").needs
    config = settings(*GRPO, "train.max_staleness=2")
    assert problems(config) == []
    (problem,) = problems(config, off_policy=False)
    assert problem.startswith("train.max_staleness: 'grpo' trains only on samples of the present weights")
    recomputed = settings(*GRPO, "train.max_staleness=2", "train.old_logprobs=recompute")
    (problem,) = problems(recomputed)
    assert "recompute leaves nothing in the loss that corrects for the age of samples" in problem
    for weighed in ("algo.decoupled=true", "algo.importance_cap=2"):
        assert (
            problems(settings(*GRPO, "train.max_staleness=2", "train.old_logprobs=recompute", weighed)) == []
        )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("algo=grpo",), "train.max_staleness is 2 or more, not 0"),
        (("algo=dapo", "train.max_staleness=2"), "'dapo' selects its groups"),
        (("algo=remax", "train.max_staleness=2"), "'remax' compares with greedy responses"),
        (("algo=grpo", "train.max_staleness=2", "rollout=hf"), "rollout 'hf' cannot go on with responses"),
    ],
)
def test_parts_need_weights_of_several_steps_and_an_engine_that_goes_on(
    settings: Callable[..., Any], words: tuple[str, ...], says: str
) -> None:
    config = settings("train.partial_rollouts=true", *words)
    algo = plugins().get("algorithms", config.algo.name)
    rollout = plugins().get("rollouts", "hf")
    able = "cannot go on" not in says
    specs = {"rollout": replace(rollout, provides=replace(rollout.provides, continues=able))}
    (problem,) = staleness_problems(config, specs, algo.needs(config.algo.config))
    assert problem.startswith("train.partial_rollouts: ")
    assert says in problem
