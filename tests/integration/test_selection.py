"""Groups selected over rounds of generation, and greedy baselines: in every mode, and after a resume."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import SelectionError
from rlinf_core.flows.flow import StepResult
from rlinf_core.run.compose import make_source, start
from rlinf_core.run.graph import make_graph
from rlinf_core.schedule.defaults import default_plan

sys.path.insert(0, str(Path(__file__).parent))
from trained_weights import published

pytestmark = pytest.mark.usefixtures("test_plugins")
MODES = ("collocated", "disaggregated", "hybrid")
REWARD = """
def digits(prompts, responses, answers, metas):
    return [float(sum(map(str.isdigit, response)) > 3) for response in responses]

def one(prompts, responses, answers, metas):
    return [1.0 for _ in responses]

def broken(prompts, responses, answers, metas):
    if any(prompt[0] < "3" for prompt in prompts):
        raise ValueError("low")
    return digits(prompts, responses, answers, metas)
"""
TEXT = (
    "model=hf_lm",
    "model.preset=char-llama",
    "data=sort_digits",
    "sampling.max_new_tokens=6",
    "trackers=[]",
    "warm_start.steps=0",
    "algo=picky",
    "train.prompts_per_step=4",
    "train.steps=3",
    "optimizer.lr=1e-4",
    "optimizer.eps=1e-6",
    "reward_pool.workers=0",
    "reward_pool.retries=0",
)
EMBODIED = (
    "simulator=gymnasium",
    "simulator.id=InvertedPendulum-v5",
    "simulator.max_episode_steps=20",
    "model=mlp_policy",
    "algo=picky",
    "algo.least=6",
    "train.prompts_per_step=3",
    "train.num_envs=8",
    "train.steps=3",
    "trackers=[]",
    "optimizer.lr=1e-3",
    "optimizer.eps=1e-6",
)


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., RunConfig]:
    """Makes the settings of a text run by the name of its reward."""
    (tmp_path / "reward.py").write_text(REWARD)

    def make(reward: str, *words: str) -> RunConfig:
        named = f"reward={tmp_path / 'reward.py'}:{reward}"
        return replace(compose(Options(overrides=(*TEXT, named, *words))), output=str(tmp_path))

    return make


def play(config: RunConfig, mode: str = "", steps: int = 3) -> tuple[list[StepResult], dict[str, Any]]:
    """Some steps, and the weights after them; without a mode in this process."""
    if not mode:
        config = replace(config, engine=compose(Options(overrides=("engine=inline",))).engine)
    plan = default_plan(make_graph(config), 2 if mode else 1, mode or "collocated")  # type: ignore[arg-type]
    source, graph = make_source(config), start(config, plan)
    try:
        results = [graph.flow.step(source.train(step), step) for step in range(steps)]
        return results, published(graph.actor)
    finally:
        graph.stop()


def differ(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def told(results: list[StepResult]) -> list[tuple[Any, ...]]:
    """What does not depend on the clock or on rounding."""
    names = ("rounds", "drawn_groups", "kept_share", "trained_samples", "groups", "reward")
    return [tuple(result.metrics.get(f"train/{name}") for name in names) for result in results]


def test_a_step_trains_on_as_many_groups_as_without_selection(text: Callable[..., RunConfig]) -> None:
    results, _ = play(text("digits"))
    assert {result.metrics["train/groups"] for result in results} == {4.0}
    assert max(result.metrics["train/rounds"] for result in results) > 1
    for result in results:
        groups: dict[int, set[float]] = {}
        for row in result.rows:
            groups.setdefault(row.group, set()).add(float(row.reward or 0.0))
        metrics = result.metrics
        assert metrics["train/drawn_groups"] == len(groups) > 4
        equal = [len(rewards) == 1 for rewards in groups.values()]
        assert metrics["train/zero_variance_groups"] == pytest.approx(sum(equal) / len(equal))
        assert metrics["train/kept_share"] == pytest.approx(1 - sum(equal) / len(equal))
        assert metrics["train/trained_samples"] == 16
        assert (
            metrics["train/samples"]
            == 4 * len(groups)
            == sum(value for name, value in metrics.items() if name.startswith("train/verdict_"))
        )
        rewards = [float(row.reward or 0.0) for row in result.rows]
        assert metrics["train/reward"] == pytest.approx(sum(rewards) / len(rewards))
    numbers = [{row.group for row in result.rows} for result in results]
    assert len(set.union(*numbers)) == sum(map(len, numbers))


def test_rewards_that_never_differ_end_the_run(text: Callable[..., RunConfig]) -> None:
    with pytest.raises(SelectionError, match=r"'picky' kept 0 of 12 groups .*mean reward was 1\."):
        play(text("one", "algo.max_rounds=3"))


def test_groups_whose_rewards_fail_are_replaced(text: Callable[..., RunConfig]) -> None:
    results, _ = play(text("broken", "reward_pool.max_error_rate=0.8"))
    assert sum(result.metrics["train/unscored"] for result in results) > 0
    assert {result.metrics["train/trained_samples"] for result in results} == {16.0}


def test_a_greedy_baseline_changes_no_sample(text: Callable[..., RunConfig]) -> None:
    (ours, *_), weights = play(text("digits", "algo.max_rounds=0", "algo.greedy=true"))
    (theirs, *_), others = play(text("digits", "algo.max_rounds=0"))
    assert [row.text for row in ours.rows] == [row.text for row in theirs.rows]  # type: ignore[attr-defined]
    assert [row.reward for row in ours.rows] == [row.reward for row in theirs.rows]
    greedy = {row.group: row.baseline for row in ours.rows}
    assert set(greedy.values()) <= {0.0, 1.0}
    assert ours.metrics["train/greedy_reward"] == pytest.approx(sum(greedy.values()) / 4)  # type: ignore[arg-type]
    assert "train/greedy_reward" not in theirs.metrics
    assert differ(weights, others) > 0


@pytest.mark.slow
def test_selection_is_the_same_in_every_mode(text: Callable[..., RunConfig]) -> None:
    words = ("ranks=2", "algo.greedy=true", "algo.reference=true")
    found = {mode: play(text("digits", *words), mode, steps=2) for mode in MODES}
    results, weights = found["collocated"]
    assert max(result.metrics["train/rounds"] for result in results) > 1
    for mode in MODES[1:]:
        assert told(found[mode][0]) == told(results), mode
        assert differ(found[mode][1], weights) < 1e-5, mode


@pytest.mark.slow
def test_episodes_are_selected_the_same_in_every_mode(tmp_path: Path) -> None:
    config = replace(compose(Options(overrides=(*EMBODIED, "ranks=2"))), output=str(tmp_path))
    found = {mode: play(config, mode, steps=2) for mode in MODES}
    results, weights = found["collocated"]
    assert max(result.metrics["train/rounds"] for result in results) > 1
    assert {result.metrics["train/groups"] for result in results} == {3.0}
    for mode in MODES[1:]:
        assert told(found[mode][0]) == told(results), mode
        assert differ(found[mode][1], weights) < 1e-5, mode


def test_a_resumed_run_draws_what_it_would_have_drawn(
    new_job: Callable[..., Any],
) -> None:
    words = ("--algo=picky", "algo.max_rounds=20", "train.steps=4", "checkpoint.every=2", "eval.every=0")
    whole, parted = new_job(*words), new_job(*words)
    assert whole.train().code == 0
    assert parted.train("train.steps=2").code == 0
    resumed = parted.resume("train.steps=4")
    assert resumed.code == 0, resumed.err
    assert max(record.get("train/rounds", 0) for record in whole.numbers()) > 1
    assert parted.numbers()[-1] == whole.numbers()[-1]
