"""Environments in worker processes: simulators conform there, and training loses nothing by their deaths."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.testing import parametrize_with_checks

PENDULUM = """
simulator: {name: gymnasium, id: InvertedPendulum-v5, max_episode_steps: 40, success_return: 40}
model: mlp_policy
algo: {name: grpo, group_size: 4}
train: {steps: 6, prompts_per_step: 4, num_envs: 8}
optimizer: {lr: 2.0e-2}
eval: {every: 3, samples: 8, temperature: 0}
trackers: []
ranks: 1
"""
OVER_PROCESSES = ("env_pool.processes=2",)


@pytest.mark.slow
@parametrize_with_checks(
    "simulators", "gymnasium", {"id": "InvertedPendulum-v5", "max_episode_steps": 20}, processes=2
)
def test_a_simulator_conforms_in_processes(check: Callable[[], None]) -> None:
    check()


@pytest.fixture(scope="module")
def train(
    start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Any, Path]]:
    """Starts the run with more settings; returns it and its folder."""
    folder = tmp_path_factory.mktemp("pendulum")
    (folder / "pendulum.yaml").write_text(PENDULUM)

    def begin(name: str, *more: str) -> tuple[Any, Path]:
        output = folder / name
        return start(["train", "-c", str(folder / "pendulum.yaml"), "--output", str(output), *more]), output

    return begin


@pytest.fixture(scope="module")
def undisturbed(train: Callable[..., tuple[Any, Path]]) -> Path:
    """The run's folder, with environments stepped in the rank itself."""
    run, output = train("undisturbed")
    assert run.done().code == 0
    return output


def weights(output: Path) -> bytes:
    return (output / "export" / "model.safetensors").read_bytes()


def counted(output: Path) -> dict[str, float]:
    counts: dict[str, float] = {}
    whole_lines, _, _ = (output / "metrics.jsonl").read_text().rpartition("\n")
    for line in whole_lines.splitlines():
        for name, value in json.loads(line).items():
            if name.startswith("env/"):
                counts[name] = counts.get(name, 0.0) + value
    return counts


def pool_processes(run: Any) -> list[int]:
    """Those that step environments now."""
    found = []
    for pid in run.family():
        try:
            if b"rlinf_core.pool.serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:  # it has ended meanwhile
            continue
    return found


def kill(run: Any, times: int, longest_s: float, seed: int) -> int:
    """Kill one process after another, each after a random time; returns how many while the run was on."""
    draw = random.Random(seed)
    killed = 0
    while killed < times and run.process.poll() is None:
        time.sleep(draw.uniform(0.2, 1.0) * longest_s)
        victims = pool_processes(run)
        if victims:
            os.kill(draw.choice(victims), signal.SIGKILL)
            killed += 1
    return killed


@pytest.mark.slow
def test_a_run_over_processes_ends_with_the_same_weights(
    train: Callable[..., tuple[Any, Path]], undisturbed: Path
) -> None:
    run, output = train("processes", "env_pool.processes=3", "schedule.stages=3")
    assert run.done().code == 0
    assert weights(output) == weights(undisturbed)
    assert counted(output) == {"env/restarts": 0, "env/lost_episodes": 0, "env/dropped_episodes": 0}


def test_a_run_whose_simulators_die_ends_with_the_same_weights(
    train: Callable[..., tuple[Any, Path]], undisturbed: Path
) -> None:
    run, output = train("deaths", *OVER_PROCESSES)
    run.wait_for(output, 0)
    run.wait_until(lambda: len(pool_processes(run)) == 2)
    for deaths in (1, 2):  # in rollouts apart: an episode that is lost twice in one is given up
        for pid in pool_processes(run)[:1]:
            os.kill(pid, signal.SIGKILL)
        run.wait_until(lambda deaths=deaths: counted(output)["env/restarts"] == deaths)
    done = run.done()
    assert done.code == 0, done.err
    assert counted(output)["env/restarts"] == 2
    assert counted(output)["env/dropped_episodes"] == 0
    assert weights(output) == weights(undisturbed)
    assert "2 processes of environments died" in done.out
    assert "died of SIGKILL; starting it again" in "".join(
        path.read_text() for path in (output / "logs").iterdir()
    )


@pytest.mark.slow
def test_a_run_survives_twenty_kills_at_random_moments(train: Callable[..., tuple[Any, Path]]) -> None:
    run, output = train("kills", *OVER_PROCESSES, "train.steps=60")
    run.wait_for(output, 0)
    assert kill(run, 20, longest_s=0.6, seed=1) == 20
    done = run.done()
    assert done.code == 0, done.err
    counts = counted(output)
    assert counts["env/restarts"] == 20
    assert counts["env/lost_episodes"] >= counts["env/dropped_episodes"]
    assert "20 processes of environments died" in done.out
    last = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 60
    assert last["eval/samples"] == 8
