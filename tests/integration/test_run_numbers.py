"""Numbers of whole runs that must agree with one another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

STILL = ("optimizer.lr=0", "train.mini_batches=2", "train.skip_gradient_free=false")


@pytest.fixture(scope="module")
def base(new_job: Callable[..., Any]) -> Any:
    job = new_job()
    done = job.train("checkpoint.every=2", "eval.temperature=0")
    assert done.code == 0, done.err
    return job


def test_one_seed_gives_the_same_bits_again_and_another_does_not(new_job: Callable[..., Any]) -> None:
    first, again, other = new_job(), new_job(), new_job("--seed=1")
    for job in (first, again, other):
        assert job.train().code == 0
    assert again.numbers() == first.numbers()
    assert again.weights() == first.weights()
    assert other.metrics()[1]["train/reward"] != first.metrics()[1]["train/reward"]
    assert other.weights() != first.weights()


def test_without_learning_rate_the_policy_ratio_stays_one(job: Any) -> None:
    assert job.train(*STILL).code == 0
    steps = job.metrics()[1:]
    assert len(steps) == 3
    for record in steps:
        assert record["train/clip_fraction"] == 0.0
        assert abs(record["train/approx_kl"]) < 1e-9
        assert record["train/logprob_mismatch"] < 1e-6
        assert record["train/active_rows"] == 1.0


def test_the_number_of_ranks_does_not_change_the_numbers(
    new_job: Callable[..., Any], start: Callable[..., Any]
) -> None:
    few = ("train.steps=2", "optimizer.lr=1e-4", "warm_start.lr=1e-4", "warm_start.batch_size=6")
    one, two = new_job(*few), new_job(*few)
    assert one.train().code == 0
    done = start(two.args(engine="local", ranks=2)).done()
    assert done.code == 0, done.err
    for mine, theirs in zip(one.numbers(), two.numbers(), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert theirs[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name


def test_the_exported_model_continues_greedily_as_the_run_did(base: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base.output / "export")
    tokenizer = AutoTokenizer.from_pretrained(base.output / "export")
    rows = base.run_eval()
    assert len(rows) == 8
    for prompt_ids, response_ids in rows:
        ids = tokenizer(tokenizer.decode(prompt_ids, skip_special_tokens=True), return_tensors="pt").input_ids
        assert ids[0].tolist() == prompt_ids
        made = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
        assert made.tolist() == response_ids


def test_evaluating_a_resumed_checkpoint_repeats_the_evaluation_of_the_run(base: Any) -> None:
    before = base.metrics()[3]
    done = base.resume("train.steps=4", "--allow-changes", "optimizer.lr=0")
    assert done.code == 0, done.err
    after = base.metrics()[4]
    for name in ("eval/accuracy", "eval/reward", "eval/response_length"):
        assert after[name] == before[name]
