"""Which weights generate, and which samples they may train (21 to 23)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlinf_core.api import Space, WeightBucket
from rlinf_core.errors import ModelError
from rlinf_core.roles import policy as policy_role
from rlinf_core.roles.policy import PolicyWorker, Question
from rlinf_core.roles.setup import Spaces
from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.run.checkpoint import CheckpointStore
from rlinf_core.run.saving import Saving
from rlinf_core.types import Sample, Sampling
from rlinf_core.worker import WorkerContext

GRPO = ("algo=grpo", "algo.group_size=4", "train.skip_gradient_free=false")
LORA = ("lora.rank=2", "optimizer.lr=1e-2")


# 21


@pytest.mark.parametrize("words", [(), ("algo=ppo", "algo.group_size=4"), ("algo.kl_coef=0.1",)])
def test_with_adapters_the_base_stays_as_it_was_and_each_step_sends_what_it_trained(
    tiny_run: Callable[..., Any], words: tuple[str, ...]
) -> None:
    run = tiny_run(*GRPO, *LORA, *words)
    base = {name: t for name, t in run.weights().items() if not _is_trained(name)}
    assert base
    sent: list[dict[str, Tensor]] = []
    for step in range(5):
        result = run.step(step)
        trainer = run.worker("actor").trainer
        assert trainer.version == step + 1
        assert {row.weight_version for row in result.rows} == {step}
        assert result.metrics["train/logprob_mismatch_max"] < 1e-4
        sent.append(run.weights(trainable_only=True))
        assert all(_is_trained(name) for name in sent[-1])
        run.graph.flow.sync()
        engine = run.worker("rollout").engine
        assert engine.version == trainer.version
        held = engine._parameters()
        assert all(torch.equal(held[name], tensor) for name, tensor in {**base, **sent[-1]}.items())
    now = run.weights()
    assert all(torch.equal(now[name], tensor) for name, tensor in base.items())
    for earlier, later in itertools.pairwise(sent):
        changed = [name for name in later if not torch.equal(earlier[name], later[name])]
        assert any("lora_A" in name for name in changed)
        assert any("lora_B" in name for name in changed)


def _is_trained(name: str) -> bool:
    return "lora_" in name or "value_head" in name


# 22


@pytest.mark.parametrize("updates", [1, 3])
def test_every_sample_names_the_version_that_made_it(tiny_run: Callable[..., Any], updates: int) -> None:
    from rlinf_core.flows.flow import record

    run = tiny_run(*GRPO, f"train.mini_batches={updates}")
    for step in range(3):
        rows = run.step(step).rows
        assert {row.weight_version for row in rows} == {updates * step}
        assert {record(row)["weight_version"] for row in rows} == {updates * step}


def test_a_rollout_in_another_process_has_all_of_the_version_that_its_samples_name(
    tiny_run: Callable[..., Any],
) -> None:
    """The weights travel; a part of them that came late would show in the log-probabilities."""
    words = (*GRPO, "optimizer.lr=1e-2", "engine=local", "ranks=2")
    run = tiny_run(*words, devices=2, mode="disaggregated")
    for step in range(4):
        result = run.step(step)
        assert {row.weight_version for row in result.rows} == {step}
        assert result.metrics["train/logprob_mismatch_max"] < 1e-4


def test_no_token_is_drawn_between_the_first_and_the_last_part_of_an_update(
    tiny_run: Callable[..., Any],
) -> None:
    """An update comes in parts; whoever asks for tokens in the middle of it is refused."""
    run = tiny_run(*GRPO)
    run.step(0)
    engine, weights = run.worker("rollout").engine, run.weights()
    names = sorted(weights)
    asked: list[str] = []

    def parts() -> Iterator[WeightBucket]:
        for i, name in enumerate(names):
            with pytest.raises(ModelError, match="no weight version is installed"):
                next(engine.generate(run.source.draw(1, 0, 1), Sampling()))
            asked.append(name)
            yield WeightBucket(7, {name: weights[name]}, last=i == len(names) - 1)

    assert engine.load_weights(parts()) == 7
    assert asked == names
    samples = next(engine.generate(run.source.draw(1, 0, 1), Sampling(max_new_tokens=1)))
    assert {sample.weight_version for sample in samples} == {7}


def test_an_update_that_fails_half_way_leaves_nothing_to_generate_with(tiny_run: Callable[..., Any]) -> None:
    run = tiny_run(*GRPO)
    run.step(0)
    engine, weights = run.worker("rollout").engine, run.weights()
    first = min(weights)
    with pytest.raises(ModelError, match="received weight 'nonsense'"):
        engine.load_weights(
            [WeightBucket(7, {first: weights[first]}), WeightBucket(7, {"nonsense": weights[first]})]
        )
    with pytest.raises(ModelError, match="no weight version is installed"):
        next(engine.generate(run.source.draw(1, 0, 1), Sampling()))


def test_an_acting_policy_whose_update_fails_half_way_does_not_act(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlinf_model_mlp_policy.config import MLPPolicyConfig
    from rlinf_model_mlp_policy.model import MLPPolicy

    model = MLPPolicy(MLPPolicyConfig(hidden=(4,)))
    model.bind({"state": Space(shape=(3,))}, Space(shape=(1,)))
    monkeypatch.setattr(policy_role, "build_model", lambda config, spaces: model)
    policy = PolicyWorker(WorkerContext("rollout[0]"), settings(*GRPO), spaces=Spaces({}, Space()))
    weights = model.module(5).state_dict()
    policy.load_weights([WeightBucket(1, weights, last=True)])
    question = Question((0, 0), {"state": np.ones((1, 3), dtype=np.float32)}, [3], True)
    before = policy.answer(question)
    first = min(weights)
    with pytest.raises(ModelError, match="no weight 'nonsense'"):
        policy.load_weights(
            [WeightBucket(2, {first: weights[first] + 1.0}), WeightBucket(2, {"nonsense": weights[first]})]
        )
    with pytest.raises(ModelError, match="no complete weights"):
        policy.answer(question)
    policy.load_weights([WeightBucket(1, weights, last=True)])
    assert torch.equal(policy.answer(question).sample.actions, before.sample.actions)


# 23


def stale_rows(made: Updater, text_row: Callable[..., Sample]) -> list[Sample]:
    """Three groups of two, 0, 1 and 2 versions behind the trainer, with log-probabilities of their own."""
    rows = [
        text_row([1, 5], [7, 8, 9], reward=float(i % 2), group=i // 2, weight_version=2 - i // 2)
        for i in range(6)
    ]
    made.trainer.version = 2
    for row in rows:
        row.logprobs = np.full(3, -2.0, dtype=np.float32)
    return rows


@pytest.mark.parametrize(("most", "trained"), [(0, 2), (1, 4), (2, 6)])
@pytest.mark.parametrize("algo", ["grpo", "dapo", "ppo", "reinforce_pp"])
def test_rows_older_than_the_bound_are_not_trained(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], algo: str, most: int, trained: int
) -> None:
    words = (f"algo={algo}", "algo.group_size=2")
    made = updater(*words, *(["algo.kl_coef=0"] if algo == "reinforce_pp" else []))
    rows = stale_rows(made, text_row)
    update = StepUpdate(made, 0, oldest=2 - most)
    update.add(rows)
    report = update.finish()
    assert report.facts["stale_rows"] == 6 - trained
    total, count = report.sums["ratio"]
    assert count == 3 * trained
    assert np.isfinite(total)


@pytest.mark.parametrize("updates", [1, 2])
def test_a_resumed_run_generates_with_the_version_it_trains(
    tiny_run: Callable[..., Any], tmp_path: Path, updates: int
) -> None:
    words = (*GRPO, f"train.mini_batches={updates}")
    run = tiny_run(*words)
    for step in range(2):
        run.step(step)
    store = CheckpointStore(tmp_path / "checkpoints", 1)
    saving = Saving(store, run.graph.crew, background=False, told=lambda step, path: None)
    saving.save(2, {"source": run.source.state_dict()})
    resumed, saved = tiny_run(*words), store.latest()
    assert saved is not None
    resumed.graph.crew.load(saved.path, saved.state["algorithm"])
    resumed.source.load_state_dict(saved.state["source"])
    for step in range(2, 4):
        expected, found = run.step(step), resumed.step(step)
        assert {row.weight_version for row in found.rows} == {updates * step}
        assert found.metrics["train/logprob_mismatch_max"] < 1e-4
        assert found.metrics["train/ratio"] == expected.metrics["train/ratio"]
        assert [row.text for row in found.rows] == [row.text for row in expected.rows]  # type: ignore[attr-defined]
    assert resumed.worker("actor").trainer.version == updates * 4
