"""Several policies in one actor and one rollout: each is trained and acts as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig, of_policy
from rlinf_core.errors import ModelError
from rlinf_core.roles.actor import ActorWorker
from rlinf_core.roles.engines import Engines
from rlinf_core.roles.policies import PoliciesWorker
from rlinf_core.roles.reference import compared
from rlinf_core.roles.rollout import build_engine
from rlinf_core.types import OWN, Prompt, Request, Sample, Sampling
from rlinf_core.worker import WorkerContext

JUDGE = "judge"


def settings(*more: str) -> RunConfig:
    """A run of two policies that differ in size, learning rate and algorithm."""
    return compose(
        Options(
            overrides=(
                *("agent.program=./nowhere.py:none", "engine=inline", "algo=grpo", "algo.group_size=4"),
                *(
                    "train.prompts_per_step=2",
                    "policies.judge.optimizer.lr=3e-3",
                    "sampling.max_new_tokens=6",
                ),
                *(
                    "policies.judge.algo={name: grpo, group_size: 4, scale_by_std: false, kl_coef: 0.5}",
                    *more,
                ),
            )
        )
    )


def rows(seed: int, version: int = 0) -> list[Sample]:
    """Two groups of four responses with rewards."""
    random = np.random.default_rng(seed)
    made = []
    for group in range(2):
        prompt = Prompt(index=group, token_ids=random.integers(3, 12, 4), text="")
        for replica in range(4):
            length = int(random.integers(2, 6))
            made.append(
                Sample(
                    group=group,
                    replica=replica,
                    seed=replica,
                    mask=np.ones(length, np.bool_),
                    logprobs=np.full(length, -1.5, np.float32),
                    weight_version=version,
                    prompt=prompt,
                    response_ids=random.integers(3, 12, length),
                    reward=float(random.random()),
                )
            )
    return made


def weights(worker: ActorWorker) -> dict[str, torch.Tensor]:
    buckets = worker.trainer.weights()
    return {name: tensor.clone() for bucket in buckets for name, tensor in bucket.tensors.items()}


def train(worker: ActorWorker, given: list[Sample], step: int = 0) -> Any:
    """One step; returns its report."""
    made = worker.train(iter([given]), step=step)
    try:
        while True:
            next(made)
    except StopIteration as end:
        return end.value


def together(own: list[Sample], judge: list[Sample]) -> list[Sample]:
    """Episodes in which both have said something."""
    return [replace(a, others={JUDGE: b}) for a, b in zip(own, judge, strict=True)]


def test_each_learns_what_it_would_learn_alone() -> None:
    config = settings()
    both = PoliciesWorker(WorkerContext(), config)
    alone = {OWN: ActorWorker(WorkerContext(), of_policy(config, OWN))}
    alone[JUDGE] = ActorWorker(WorkerContext(), of_policy(config, JUDGE), keep_reference=True)
    for step, version in enumerate((0, 2)):  # two optimizer steps each time
        own, judge = rows(step), rows(10 + step)
        report = train(
            both, together(*([replace(r, weight_version=version) for r in e] for e in (own, judge))), step
        )
        list(compared(alone[JUDGE].updater, judge))  # as a reference worker beside it
        told = {
            OWN: train(alone[OWN], [replace(row, weight_version=step) for row in own], step),
            JUDGE: train(alone[JUDGE], [replace(row, weight_version=step) for row in judge], step),
        }
        assert (
            report.facts["lr"] == told[OWN].facts["lr"] != report.facts["judge/lr"] == told[JUDGE].facts["lr"]
        )
        assert report.sums["judge/grad_norm"] == told[JUDGE].sums["grad_norm"]
        assert report.sums["judge/kl"] == told[JUDGE].sums["kl"]
        assert both.trainer.version == 2 * step + 2
        found = weights(both)
        for name, worker in alone.items():
            for weight, tensor in weights(worker).items():
                assert torch.equal(found[f"{name}:{weight}"], tensor), (name, weight)


def test_a_policy_that_said_nothing_is_left_as_it_was() -> None:
    both = PoliciesWorker(WorkerContext(), settings())
    before = weights(both)
    train(both, rows(0))
    after = weights(both)
    changed = {name.partition(":")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {OWN}
    assert both.trainer.version == 1


def test_a_checkpoint_brings_all_of_them_back(tmp_path: Path) -> None:
    first, second = (PoliciesWorker(WorkerContext(), settings()) for _ in range(2))
    train(first, together(rows(0), rows(1)))
    staged = first.stage_save(background=False)
    first.write_save(str(tmp_path / "actor"), str(tmp_path / "listing-"))
    first.finish_save()
    assert set(staged.algorithm) == {OWN, JUDGE}
    second.load(str(tmp_path / "actor"), dict(staged.algorithm))
    for worker in (first, second):
        train(worker, together(rows(2, 2), rows(3, 2)), 1)
    one, other = weights(first), weights(second)
    assert {name.partition(":")[0] for name in one} == {OWN, JUDGE}
    assert all(torch.equal(one[name], other[name]) for name in one)


def requests(engine: Engines, policy: str, count: int) -> list[Request]:
    model = engine.each[policy].model
    ids = np.array(model.processor().encode_prompt("3 1 2 ="), np.int64)
    prompt = Prompt(index=0, token_ids=ids, text="")
    return [Request(prompt, group=i, replica=0, seed=i, policy=policy) for i in range(count)]


def test_engines_of_two_answer_as_each_alone_would() -> None:
    config = settings()
    worker = PoliciesWorker(WorkerContext(), config)
    train(worker, together(rows(0), rows(1)))  # weights that differ
    engine = build_engine(config, "cpu")
    assert isinstance(engine, Engines)
    assert engine.load_weights(worker.trainer.weights()) == engine.version == 2
    sampling = Sampling(max_new_tokens=6)
    asked = [
        [one, other] for one, other in zip(requests(engine, OWN, 5), requests(engine, JUDGE, 5), strict=True)
    ]
    asked = [[replace(b, group=b.group + 100) if b.policy == JUDGE else b for b in each] for each in asked]
    found = {sample.group: sample for chunk in engine.generate(iter(asked), sampling) for sample in chunk}
    assert sorted(found) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    for policy, first in ((OWN, 0), (JUDGE, 100)):
        alone = engine.each[policy].generate(iter([requests(engine, policy, 5)]), sampling)
        for sample in (sample for chunk in alone for sample in chunk):
            same = found[sample.group + first]
            assert same.response_ids.tolist() == sample.response_ids.tolist()
            assert same.logprobs == pytest.approx(sample.logprobs, abs=1e-6)
            assert same.weight_version == 2


def test_weights_of_a_policy_that_is_missing_or_unknown_are_refused() -> None:
    config = settings()
    worker = PoliciesWorker(WorkerContext(), config)
    engine = build_engine(config, "cpu")
    own = [bucket for bucket in worker.trainer.weights() if next(iter(bucket.tensors)).startswith("policy:")]
    with pytest.raises(ModelError, match="no weights came for policy 'judge'"):
        engine.load_weights(iter(own))
    with pytest.raises(ModelError, match="policy 'policy' came twice, or there is none"):
        engine.load_weights(iter([*worker.trainer.weights(), *own]))
