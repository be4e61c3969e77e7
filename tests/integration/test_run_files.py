"""What a run leaves behind, and that it can be repeated."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def local(new_job: Callable[..., Any], start: Callable[..., Any]) -> Any:
    job = new_job("trackers=[csv]")
    job.done = start(job.args(engine="local")).done()
    assert job.done.code == 0, job.done.err
    return job


def test_the_folder_of_a_run_holds_all_there_is_to_know_of_it(local: Any) -> None:
    names = {entry.name for entry in local.output.iterdir()}
    assert {"config.yaml", "logs", "metrics.jsonl", "samples.jsonl", "checkpoints", "export"} <= names
    assert {path.name for path in (local.output / "logs").iterdir()} == {"device0.log", "reward.log"}
    assert {path.name for path in (local.output / "checkpoints").iterdir()} == {"step_0", "step_3", "latest"}
    assert (local.output / "checkpoints" / "latest").resolve().name == "step_3"


def test_metrics_are_one_record_a_step_with_the_first_evaluation_before(local: Any) -> None:
    records = local.metrics()
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    for record in records[1:]:
        expected = {
            "time/step",
            "time/rollout",
            "time/reward",
            "time/actor",
            "time/sync",
            "util/device0",
            "bubble_ratio",
        }
        expected |= {"util/tokens_per_s", "util/samples_per_s"}
        expected |= {"train/reward", "train/reward_std", "train/grad_norm", "train/logprob_mismatch"}
        assert expected <= set(record)
        assert record["train/samples"] == 32
        assert record["train/grad_norm"] > 0
        assert record["time/step"] > max(record["time/rollout"], record["time/actor"])
    assert ["eval/accuracy" in record for record in records] == [True, False, True, True]


def test_samples_are_logged_with_prompt_response_answer_and_reward(local: Any) -> None:
    rows = [json.loads(line) for line in (local.output / "samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1] * 8 + [2] * 8 + [3] * 8
    for row in rows:
        assert "".join(sorted(row["prompt"][:6])) == row["answer"]
        right = sum(a == b for a, b in zip(row["response"], row["answer"], strict=False))
        assert row["reward"] == pytest.approx(right / 6)
        assert row["finish"] in ("stop", "length")
    assert [row["weight_version"] for row in rows[::8]] == [4, 5, 6]


def test_samples_have_their_tokens_with_what_each_was_worth(local: Any) -> None:
    """A group of eight, so that advantages can be computed from the rewards beside them."""
    rows = [json.loads(line) for line in (local.output / "samples.jsonl").read_text().splitlines()]
    for group in (rows[:8], rows[16:]):
        assert len({row["group"] for row in group}) == 1
        rewards = [row["reward"] for row in group]
        for row in group:
            worth = (row["reward"] - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-6)
            assert row["advantages"] == pytest.approx([worth] * row["length"], rel=1e-3, abs=1e-6)
            assert "".join(row["tokens"]).replace("∎", "") == row["response"]
            assert len(row["logprobs"]) == len(row["tokens"]) == row["length"]
            assert max(row["logprobs"]) <= 0


def test_piped_output_is_plain_text(local: Any) -> None:
    assert all(letter.isprintable() or letter == "\n" for letter in local.done.out)
    assert local.done.err == ""
    for shown in ("held-out accuracy", "step 3/3", "warm start 4/4", str(local.output / "export")):
        assert shown in local.done.out


def test_the_settings_of_a_run_start_the_same_run_again(
    local: Any, new_job: Callable[..., Any], command: Callable[..., Any]
) -> None:
    job = new_job()
    recipe = str(local.output / "config.yaml")
    again = command("train", "-c", recipe, f"--output={job.output}", "--engine=inline")
    assert again.code == 0, again.err
    assert job.numbers() == local.numbers()
    assert job.weights() == local.weights()


def test_with_the_trainers_own_log_probabilities_their_difference_is_shown(
    new_job: Callable[..., Any], start: Callable[..., Any]
) -> None:
    job = new_job("trackers=[]", "train.mini_batches=2", "train.old_logprobs=recompute", "train.steps=1")
    done = start(job.args(engine="inline")).done()
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (job.output / "samples.jsonl").read_text().splitlines()]
    assert all(len(row["mismatch"]) == len(row["tokens"]) for row in rows)
    assert max(abs(gap) for row in rows for gap in row["mismatch"]) < 1e-4
