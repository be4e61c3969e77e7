"""Runs whose rows are made ahead of their training: exact after a resume, and the same whatever dies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_core.cluster import devices
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.run.ahead import RunAhead
from rlinf_core.run.compose import make_source
from rlinf_core.run.compose import start as start_workers
from rlinf_core.run.graph import make_graph
from rlinf_core.run.planning import MODES
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.plan import Mode

sys.path.insert(0, str(Path(__file__).parent))
from trained_weights import difference, published

AHEAD = ("train.max_staleness=2", "train.steps=6", "checkpoint.every=1", "checkpoint.keep=9", "eval.every=4")


def set_back(output: Path, step: int) -> None:
    """The run as it was when this step's checkpoint was its latest."""
    latest = output / "checkpoints" / "latest"
    latest.unlink()
    latest.symlink_to(f"step_{step}")
    shutil.rmtree(output / "export")


def check_resumed(job: Any, resume: Callable[[], Any], steps: tuple[int, ...]) -> None:
    """Whatever step it goes on from, a run ends as it did without a stop."""
    numbers, weights = job.numbers(), job.weights()
    ages = [record.get("train/staleness_max") for record in numbers]
    assert ages == [None, 0, 1, 2, 2, 2, 2]
    for step in steps:
        set_back(job.output, step)
        done = resume()
        assert done.code == 0, done.err
        assert job.numbers() == numbers, step
        assert job.weights() == weights, step


@pytest.mark.parametrize(("more", "steps"), [((), (1, 4)), (("train.partial_rollouts=true",), (3,))])
def test_a_resumed_run_trains_on_the_rows_that_were_made_before(
    job: Any, more: tuple[str, ...], steps: tuple[int, ...]
) -> None:
    done = job.train(*AHEAD, *more)
    assert done.code == 0, done.err
    check_resumed(job, job.resume, steps)


PENDULUM = """
simulator: {name: gymnasium, id: InvertedPendulum-v5, max_episode_steps: 40, success_return: 40}
model: mlp_policy
algo: {name: grpo, group_size: 4}
train: {steps: 8, prompts_per_step: 4, num_envs: 8, max_staleness: 2}
optimizer: {lr: 2.0e-2}
eval: {every: 3, samples: 8, temperature: 0}
checkpoint: {every: 2}
trackers: []
"""
APART = ("ranks=2", "mode=disaggregated", "env_pool.processes=2")


def pool_processes(run: Any) -> list[int]:
    """Those that step environments now."""
    found = []
    for pid in run.family():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"rlinf_core.pool.serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, as in those of two ranks on two cores: sums depend on how many share them."""
    monkeypatch.setattr(devices, "_cores", lambda _: (0,))


def steps_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_no_fault_lets_a_row_grow_older(
    command: Callable[..., Any], start: Callable[..., Any], tmp_path: Path, one_thread: None
) -> None:
    """A simulator dies, then everything; the run goes on elsewhere, and ends as one that nothing befell."""
    (tmp_path / "pendulum.yaml").write_text(PENDULUM)
    given = ("train", "-c", str(tmp_path / "pendulum.yaml"))
    whole, struck = tmp_path / "whole", tmp_path / "struck"
    done = command(*given, "--output", str(whole), "engine=inline", "ranks=1")
    assert done.code == 0, done.err
    run = start([*given, "--output", str(struck), *APART])
    run.wait_for(struck, 0)
    run.wait_until(lambda: len(pool_processes(run)) == 2)
    os.kill(pool_processes(run)[0], signal.SIGKILL)
    run.wait_for(struck, 3)
    for pid in run.family():
        os.kill(pid, signal.SIGKILL)
    run.done()
    done = command(
        "train", "--resume", str(struck), "engine=inline", "ranks=1", "mode=auto", "--allow-changes"
    )
    assert done.code == 0, done.err
    assert sum(record["env/restarts"] for record in steps_of(struck)) >= 1
    assert [record.get("train/staleness_max", 0) for record in steps_of(struck)] == [
        0,
        0,
        1,
        2,
        2,
        2,
        2,
        2,
        2,
    ]
    assert (struck / "export" / "model.safetensors").read_bytes() == (
        whole / "export" / "model.safetensors"
    ).read_bytes()


@pytest.mark.slow
def test_a_run_that_loses_those_who_play_ends(job: Any, start: Callable[..., Any]) -> None:
    run = start(
        job.args(
            "train.max_staleness=1",
            "train.steps=1000",
            "mode=disaggregated",
            "engine.restarts=0",
            engine="local",
            ranks=2,
        )
    )
    run.wait_for(job.output, 2)
    hosts = [
        pid for pid in run.family() if b"rlinf_core.worker.host" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(hosts[0], signal.SIGKILL)
    done = run.done(60)
    assert done.code == 1
    assert "rollout[0]" in done.error


EMBODIED = (
    "simulator=gymnasium",
    "simulator.id=InvertedPendulum-v5",
    "simulator.max_episode_steps=5",
    "model=mlp_policy",
    "model.chunk=2",
    "trackers=[]",
    "train.prompts_per_step=4",
    "train.num_envs=4",
    "train.steps=5",
    "train.max_staleness=2",
    "algo=ppo",
    "optimizer.lr=1e-2",
    "optimizer.eps=1e-6",
)


def ended(output: Path, engine: str, mode: Mode, ranks: int) -> dict[str, torch.Tensor]:
    """The weights after five steps, of which every row is as old as it should be."""
    words = (*EMBODIED, f"engine={engine}", f"ranks={ranks}")
    config = replace(compose(Options(overrides=words)), output=str(output))
    source = make_source(config)
    graph = start_workers(config, default_plan(make_graph(config), ranks, mode))
    try:
        ahead = RunAhead(2, 5, source.train)
        for step in range(5):
            result = ahead.step(graph.flow, step)
            assert {row.weight_version for row in result.rows} == {max(0, step - 2)}
        assert graph.flow.apart is (mode == "disaggregated")
        return published(graph.actor)
    finally:
        graph.stop()


@pytest.mark.slow
def test_rows_made_ahead_teach_the_same_in_every_mode(tmp_path: Path) -> None:
    alone = ended(tmp_path, "inline", "collocated", 1)
    for mode in MODES:
        assert difference(ended(tmp_path, "local", mode, 2), alone) < 1e-5, mode
