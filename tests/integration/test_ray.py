"""Runs on a Ray of their own give what the engine `local` gives, and end as with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
LORA = ("model.preset=tiny-qwen2", "lora.rank=4", "lora.dropout=0.1", "algo.kl_coef=0.01")
CRITIC = ("algo=ppo", "algo.critic=own", "algo.kl_coef=0.1", "algo.kl_target=0.01")
ACTING = (
    *("--recipe=inverted-pendulum", "train.steps=2", "train.prompts_per_step=4", "algo.group_size=4"),
    *("simulator.max_episode_steps=20", "eval.samples=4", "eval.every=1", "trackers=[]"),
)
LONG = "train.steps=100000"


def named(family: list[int], *names: bytes) -> list[int]:
    """Those whose command line has one of these names."""
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in family}
    return [
        pid
        for pid, line in lines.items()
        if line.exists() and any(name in line.read_bytes() for name in names)
    ]


def hosts_of(family: list[int]) -> list[int]:
    """The processes in which workers are."""
    return named(family, b"rlinf_core.worker.host")


@pytest.mark.parametrize(
    "more",
    [("mode=disaggregated", *LORA), ("mode=collocated", *CRITIC)],
    ids=["disaggregated, adapters", "collocated, critic"],
)
def test_a_text_run_ends_with_the_same_bits_as_locally(
    new_job: Callable[..., Any], start: Callable[..., Any], more: tuple[str, ...]
) -> None:
    local, ray = new_job(*more), new_job(*more)
    for job, engine in ((local, "local"), (ray, "ray")):
        done = start(job.args(engine=engine, ranks=2)).done(240)
        assert done.code == 0, done.err
    assert ray.numbers() == local.numbers()
    assert ray.weights() == local.weights()


def test_an_embodied_run_whose_policy_acts_over_channels_ends_with_the_same_bits_as_locally(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    for engine in ("local", "ray"):
        own = (f"--engine={engine}", "--ranks=2", "--mode=disaggregated", f"--output={tmp_path / engine}")
        done = start(["train", *ACTING, *own]).done(240)
        assert done.code == 0, done.err
    weights = [(tmp_path / engine / "export/model.safetensors").read_bytes() for engine in ("local", "ray")]
    assert weights[0] == weights[1]


def test_ctrl_c_ends_everything_within_three_seconds(
    job: Any, start: Callable[..., Any], alive: Callable[..., Any]
) -> None:
    started = start(job.args(LONG, engine="ray", ranks=2))
    started.wait_for(job.output, 1)
    family = started.family()
    began = time.monotonic()
    os.killpg(started.process.pid, signal.SIGINT)  # as a terminal does
    done = started.done(20)
    assert time.monotonic() - began < 3.0
    assert done.code == 130
    assert "Traceback" not in done.err
    assert not alive(family)


@pytest.mark.parametrize("victim", ["host", "driver"])
def test_whoever_is_killed_the_run_ends_in_seconds_and_leaves_nothing(
    job: Any, start: Callable[..., Any], alive: Callable[..., Any], victim: str
) -> None:
    started = start(job.args(LONG, engine="ray", ranks=2))
    started.wait_for(job.output, 1)
    family = started.family()
    agents = named(family, b"ray::DashboardAgent", b"ray::RuntimeEnvAgent")  # Ray's own take a minute or so
    began = time.monotonic()
    os.kill(hosts_of(family)[-1] if victim == "host" else started.process.pid, signal.SIGKILL)
    done = started.done(20)
    assert time.monotonic() - began < 5.0
    assert done.code == (-9 if victim == "driver" else 1)
    if victim != "driver":
        assert "(pid " in done.error
        assert "[1]" in done.error or "[0]" in done.error
    end = time.monotonic() + 10
    ours = [pid for pid in family if pid not in agents]
    while alive(ours) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(ours)


def test_a_run_that_loses_a_process_goes_on_by_itself_bit_for_bit(
    new_job: Callable[..., Any], start: Callable[..., Any]
) -> None:
    given = ("train.steps=5", "checkpoint.every=2")
    whole, hurt = new_job(*given), new_job(*given)
    reward = f"--reward={hurt.folder / 'partial_reward.py'}:slow"
    started = start(hurt.args(reward, "engine.restarts=1", engine="local"))
    started.wait_for(hurt.output, 3)
    os.kill(hosts_of(started.family())[0], signal.SIGKILL)
    done = started.done(120)
    assert done.code == 0, done.err
    assert "goes on from its last checkpoint (0 restarts left)" in done.out + done.err
    assert whole.train().code == 0
    assert [record["step"] for record in hurt.metrics()] == list(range(6))
    assert hurt.numbers() == whole.numbers()
    assert hurt.weights() == whole.weights()
