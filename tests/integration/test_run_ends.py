"""Runs that are interrupted, killed or lose a worker, and how they go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LORA = ("model.preset=tiny-qwen2", "lora.rank=4", "lora.dropout=0.1", "algo.kl_coef=0.01")
CRITIC = ("algo=ppo", "algo.critic=own", "algo.kl_coef=0.1", "algo.kl_target=0.01", "train.update_epochs=2")
LONG = "train.steps=100000"


def kill(started: Any) -> None:
    """All processes at once, as when a machine goes down."""
    for pid in started.family():
        os.kill(pid, signal.SIGKILL)
    started.done()


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("local", ()),
        ("inline", ("train.mini_batches=2", "train.update_epochs=2")),
        ("inline", LORA),
        ("inline", CRITIC),
    ],
    ids=["plain", "mini-batches", "adapters", "critic"],
)
def test_a_killed_run_goes_on_bit_for_bit(
    engine: str, settings: tuple[str, ...], new_job: Callable[..., Any], start: Callable[..., Any]
) -> None:
    """Between checkpoints; those are made at steps 2, 4..."""
    given = ("train.steps=6", "checkpoint.every=2", *settings)
    whole, killed = new_job(*given), new_job(*given)
    reward = f"--reward={killed.folder / 'partial_reward.py'}:slow"
    victim = start(killed.args(reward, engine=engine))
    victim.wait_for(killed.output, 3)
    kill(victim)
    assert killed.metrics()[-1]["step"] < 6
    done = killed.resume("--engine=inline")
    assert done.code == 0, done.err
    done = whole.train()
    assert done.code == 0, done.err
    assert [record["step"] for record in killed.metrics()] == [0, 1, 2, 3, 4, 5, 6]
    assert killed.numbers() == whole.numbers()
    assert killed.weights() == whole.weights()


@pytest.mark.alone
@pytest.mark.parametrize("during", ["warm start", "training"])
def test_ctrl_c_ends_everything_within_three_seconds_and_the_run_can_go_on(
    during: str, job: Any, start: Callable[..., Any], alive: Callable[..., Any]
) -> None:
    long = "warm_start.steps=100000" if during == "warm start" else LONG
    started = start(job.args(long, engine="local", ranks=2))
    if during == "training":
        started.wait_for(job.output, 2)
    else:
        started.wait_until(lambda: len(started.family()) >= 5)
        started.wait_for_text("warm start 100/")
    family = started.family()
    began = time.monotonic()
    os.kill(started.process.pid, signal.SIGINT)
    done = started.done(20)
    assert time.monotonic() - began < 3.0
    assert done.code == 130
    assert f"rlinf train --resume {job.output}" in done.out
    assert "Traceback" not in done.err
    assert not alive(family)
    steps = max((record["step"] for record in job.metrics()), default=0) if during == "training" else 0
    more = ("train.steps=1", "warm_start.steps=4") if not steps else (f"train.steps={steps + 1}",)
    resumed = job.resume("--engine=inline", "--ranks=1", "--allow-changes", *more)
    assert resumed.code == 0, resumed.err
    assert job.metrics()[-1]["step"] == steps + 1


@pytest.mark.alone
def test_ctrl_c_ends_a_step_that_does_not(
    job: Any, start: Callable[..., Any], alive: Callable[..., Any]
) -> None:
    (job.folder / "stuck.py").write_text(
        "import time\ndef score(prompts, responses, answers, metas):\n    time.sleep(60)\n"
    )
    given = (f"--reward={job.folder / 'stuck.py'}:score", "warm_start.steps=0", "reward_pool.timeout_s=100")
    started = start(job.args(*given, engine="local"))
    started.wait_until(lambda: len(started.family()) >= 4)
    time.sleep(1.0)
    began = time.monotonic()
    family = started.family()
    os.kill(started.process.pid, signal.SIGINT)
    done = started.done(20)
    assert time.monotonic() - began < 3.0
    assert done.code == 130
    assert not alive(family)


@pytest.mark.alone
def test_a_killed_worker_ends_the_run_within_five_seconds_and_is_named(
    job: Any, start: Callable[..., Any], alive: Callable[..., Any]
) -> None:
    started = start(job.args(LONG, "engine.restarts=0", engine="local", ranks=2))
    started.wait_for(job.output, 1)
    family = started.family()
    hosts = [pid for pid in family if b"rlinf_core.worker.host" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    began = time.monotonic()
    os.kill(hosts[1], signal.SIGKILL)
    done = started.done(20)
    assert time.monotonic() - began < 5.0
    assert done.code == 1
    assert "[1]" in done.error
    assert "SIGKILL" in done.error
    assert not alive(family)
