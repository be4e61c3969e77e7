"""Runs of Megatron, on the CPU, whose number of ranks changes while they go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from scaled_crew import Job, Machine, plan, state, trained

CPU = Path(__file__).parents[2] / "plugins/backends/megatron/tests/megatron_cpu.py"
ONE, ACTOR_2 = plan({"rollout": 1, "actor": 1}), plan({"rollout": 1, "actor": 2})
DATA, TENSOR = "backend.tensor_parallel=1", "backend.tensor_parallel=0"
CRITIC = ("algo={name: ppo, critic: own}", "algo.kl_coef=0.1")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("scaling"), 2)
    try:
        yield made
    finally:
        made.engine.stop()


def words(*others: str) -> tuple[str, ...]:
    return ("backend=megatron", f"backend.preload={CPU}", *others)


@pytest.mark.parametrize(
    "settings",
    [(TENSOR,), pytest.param((DATA, *CRITIC), marks=[pytest.mark.slow, pytest.mark.nightly])],
    ids=["tensor parallel", "data parallel with a critic"],
)
def test_a_run_of_megatron_that_scales_learns_what_one_that_does_not_learns(
    machine: Machine, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    config = machine.text(*words(*settings))
    steady = trained(machine.crew(config), [ONE] * 3)
    scaled = Job(machine.crew(config), ONE)
    try:
        scaled.step()
        before = state(scaled.crew, tmp_path / "0")
        for number, wanted in enumerate([ACTOR_2, ONE], 1):
            scaled.scale(wanted)
            after = state(scaled.crew, tmp_path / str(number))
            unlike = [name for name, tensor in before.items() if not torch.equal(after[name], tensor)]
            assert not unlike
            scaled.step()
            before = state(scaled.crew, tmp_path / f"{number}-trained")
            before.pop("random.1", None)  # of a rank that goes
        assert sum(name.startswith("optimizer.exp_avg_sq.") for name in before) > 10
    finally:
        scaled.close()
    for name in ("train/grad_norm", "train/reward", "train/response_length"):
        assert scaled.numbers(name) == pytest.approx(steady.numbers(name), rel=1e-5), name
