"""`rlinf replay`: updates made again from kept rows come out as the run wrote them down."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.roles.batch_file import read_batch, write_batch

KEPT = ("checkpoint.every=1", "checkpoint.keep=4", "checkpoint.keep_batches=3", "eval.every=0")
POLE = ("--simulator=gymnasium", "simulator.id=InvertedPendulum-v5", "simulator.max_episode_steps=30")
LUCKY = """
def lucky(prompts, responses, answers, metas):
    return [float(sum(map(ord, response)) % 3) for response in responses]
"""
Replay = Callable[..., Any]


@pytest.fixture(scope="module")
def trained(new_job: Any) -> Any:
    """A run of three steps with several updates each, a reference, and checkpoints of all of them."""
    job = new_job(*KEPT, "train.mini_batches=2", "train.update_epochs=2", "algo.kl_coef=0.05")
    assert job.train().code == 0
    return job


@pytest.fixture
def replay(command: Callable[..., Any]) -> Replay:
    """What the command said as an object, and how it ended."""

    def call(*args: object) -> Any:
        done = command("replay", *map(str, args), "--json")
        return (json.loads(done.out) if done.out else {}), done

    return call


def test_an_update_comes_out_bit_for_bit(trained: Any, replay: Replay) -> None:
    said, done = replay(trained.output, 3)
    assert done.code == 0, done.err
    assert (said["first"], said["differing"]) == (3, [])
    written = trained.metrics()[-1]
    assert said["metrics"]["train/grad_norm"]["replayed"] > 0
    assert "train/kl" in said["metrics"]
    assert all(value["replayed"] == written[name] for name, value in said["metrics"].items())
    assert set(said["weights"].values()) == {0.0}


def test_the_table_has_both_and_the_difference(trained: Any, command: Any) -> None:
    done = command("replay", str(trained.output), "2", "algo.kl_coef=0.5")
    lines = dict(line.split("\t", 1) for line in done.out.splitlines())
    before, now, gap = map(float, lines["train/policy_loss"].split("\t"))
    assert gap == pytest.approx(now - before, rel=1e-2)
    assert "algo.kl_coef: 0.05 -> 0.5" in done.err
    assert "not judged: other settings" in done.err
    assert done.code == 0


def test_steps_since_the_nearest_checkpoint_are_made_again_first(
    trained: Any, replay: Replay, tmp_path: Path
) -> None:
    copy = copied(trained, tmp_path)
    shutil.rmtree(copy / "checkpoints" / "step_2")
    said, done = replay(copy, 3)
    assert done.code == 0, done.err
    assert said["first"] == 2
    assert said["differing"] == []


def test_other_rows_give_another_update_and_exit_code_1(trained: Any, replay: Replay, tmp_path: Path) -> None:
    copy = copied(trained, tmp_path)
    batch = read_batch(copy / "batches" / "step_3")
    rows = [replace(row, reward=float(i % 2)) for i, row in enumerate(batch.rows)]
    write_batch(copy / "batches" / "step_3", rows, batch.facts)
    said, done = replay(copy, 3)
    assert done.code == 1
    assert "train/policy_loss" in said["differing"]
    assert any(name.startswith("actor: ") for name in said["differing"])
    said, done = replay(copy, 3, "--tolerance", 1e9)
    assert (done.code, said["differing"]) == (0, [])


def test_a_run_without_warm_start_is_replayed_from_its_beginning(job: Any, replay: Replay) -> None:
    settings = ("checkpoint.every=0", "checkpoint.keep_batches=9", "warm_start.steps=0", "train.steps=2")
    assert job.train(*settings).code == 0
    said, done = replay(job.output, 2, "--inline")
    assert done.code == 0, done.err
    assert (said["first"], said["differing"]) == (1, [])


@pytest.mark.parametrize("critic", ["head", "own"])
def test_episodes_and_their_critic(command: Any, replay: Replay, tmp_path: Path, critic: str) -> None:
    output = tmp_path / "run"
    sizes = ("train.steps=2", "train.prompts_per_step=4", "train.mini_batches=2", "eval.samples=2")
    place = ("--engine=inline", "--ranks=1", "trackers=[]", f"--output={output}")
    words = ("--algo=ppo", f"algo.critic={critic}", "--backend=fsdp", "--model=mlp_policy", *POLE)
    assert command("train", *words, *KEPT, *sizes, *place).code == 0
    said, done = replay(output, 2)
    assert done.code == 0, done.err
    assert said["differing"] == []
    assert "train/value_loss" in said["metrics"]
    assert any(name.startswith("critic: ") for name in said["weights"]) == (critic == "own")
    assert replay(output, 2, "algo.gae_lambda=0.5")[0]["metrics"]["train/value_loss"]["replayed"] > 0


def test_weights_that_overflowed_are_told_of_again(job: Any, replay: Replay) -> None:
    (job.folder / "lucky.py").write_text(LUCKY)
    breaks = ("warm_start.steps=0", "train.steps=9", "optimizer.lr=1e38", "optimizer.grad_clip=0")
    assert job.train(f"--reward={job.folder / 'lucky.py'}:lucky", *breaks, *KEPT).code == 2
    (place,) = (job.output / "not-finite").iterdir()
    step = int(place.name.removeprefix("step_").partition("-")[0])
    written = sorted(path.name for path in job.output.rglob("*"))
    for words in ([], ["--batch", place]):
        _, done = replay(job.output, step, *words)
        assert done.code == 2
        assert f"step_{step}: log-probabilities of" in done.error
    assert sorted(path.name for path in job.output.rglob("*")) == written


def test_rows_with_a_loss_that_is_not_finite_leave_the_step_out_again(
    trained: Any, replay: Replay, tmp_path: Path
) -> None:
    """One infinite reward spoils the advantages of its group, which has rows in every mini-batch."""
    batch = read_batch(trained.output / "batches" / "step_3")
    rows = [replace(row, reward=float("inf")) if i == 0 else row for i, row in enumerate(batch.rows)]
    write_batch(tmp_path / "dump", rows, {"part": "step_3", "rows_too_large_to_keep": 0})
    said, _ = replay(trained.output, 3, "--batch", tmp_path / "dump")
    assert said["metrics"]["train/skipped_steps"] == {"recorded": 0.0, "replayed": 4.0}
    write_batch(tmp_path / "part", rows[4:], {"part": "step_3", "rows_too_large_to_keep": 4})
    said, done = replay(trained.output, 3, "--batch", tmp_path / "part")
    assert (said["whole"], said["differing"], done.code) == (False, None, 0)


def test_what_is_missing_is_told_with_the_setting_that_keeps_it(
    trained: Any, command: Any, tmp_path: Path
) -> None:
    def refused(run: Path, *words: object) -> str:
        done = command("replay", str(run), *map(str, words))
        assert done.code == 2, done.err
        assert done.err.count("\n") == 1
        return str(done.error)

    copy = copied(trained, tmp_path)
    assert "there is no run here" in refused(tmp_path / "none", 1)
    assert "has rows of steps 1, 2, 3; a run keeps" in refused(copy, 7)
    assert "drop it" in refused(copy, 3, "reward_pool.workers=0")
    assert "unknown key" in refused(copy, 3, "algo.clip=0.1")
    assert "has the rows of step 2, not of 3" in refused(copy, 3, "--batch", copy / "batches" / "step_2")
    assert "holds no batch" in refused(copy, 3, "--batch", copy)
    for step in (1, 2):
        shutil.rmtree(copy / "checkpoints" / f"step_{step}")
    shutil.rmtree(copy / "batches" / "step_1")
    said = refused(copy, 3)
    assert "the nearest state before it is checkpoint step_0, so that step 1 would" in said
    assert "checkpoint.keep_batches=3 or more" in said
    shutil.rmtree(copy / "checkpoints" / "step_0")
    assert "the run's beginning follows from a warm start; there are step_3" in refused(copy, 3)


@pytest.mark.slow
def test_a_step_of_another_process_comes_out_bit_for_bit_in_this_one(job: Any, replay: Replay) -> None:
    """Also where that had other threads than this one."""
    assert job.train(*KEPT, "engine=local").code == 0
    said, done = replay(job.output, 3, "--inline")
    assert (done.code, said["differing"], said["notes"]) == (0, [], []), done.err


@pytest.mark.slow
def test_ranks_places_and_the_plans_of_a_run_come_back(job: Any, replay: Replay) -> None:
    """Rows that stream to a trainer elsewhere, and another number of ranks from the third step on; in this
    process sums are in another order."""
    scale = "schedule.scale=[{step: 2, actor: 1}]"
    settings = ("mode=hybrid", scale, "train.steps=4", "warm_start.steps=0", "checkpoint.every=0")
    assert job.train(*settings, "checkpoint.keep_batches=9", "ranks=2", "engine=local").code == 0
    said, done = replay(job.output, 4)
    assert done.code == 0, done.err
    assert (said["first"], said["differing"]) == (1, [])
    said, done = replay(job.output, 2, "--inline", "--tolerance", 1e-4)
    assert done.code == 0, done.err
    assert "trained by 2 ranks and is made again by 1" in said["notes"][0]


def copied(job: Any, folder: Path) -> Path:
    """The run in a folder of its own, to spoil."""
    return Path(shutil.copytree(job.output, folder / "copy", symlinks=True))
