"""Groups whose number of ranks changes while a run goes on: nothing is lost, nothing comes out different."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from scaled_crew import Job, Machine, state, trained

BOTH_1, BOTH_2 = {"rollout": 1, "actor": 1}, {"rollout": 2, "actor": 2}
ACTOR_2, ACTOR_4 = {"rollout": 1, "actor": 2}, {"rollout": 2, "actor": 4}
CASES = {
    "sharded": ("backend.sharding=full",),
    "replicated": ("backend.sharding=none",),
    "adapters": ("backend.sharding=full", "lora.rank=4"),
    "reference": ("backend.sharding=full", "algo.kl_coef=0.1"),
    "critic": ("backend.sharding=full", "algo=ppo", "algo.critic=own", "algo.group_size=null"),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("scaling"), 4)
    try:
        yield made
    finally:
        made.engine.stop()


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_scales_learns_what_one_that_does_not_learns(machine: Machine, case: str) -> None:
    words = [word for word in CASES[case] if word != "algo.group_size=null"]
    config = machine.text(*words)
    scaled = trained(machine.crew(config), [BOTH_1, ACTOR_2, BOTH_1, BOTH_2, ACTOR_2, BOTH_1])
    steady = trained(machine.crew(config), [BOTH_1] * 6)
    for name in ("train/grad_norm", "train/reward", "train/response_length"):
        assert scaled.numbers(name) == pytest.approx(steady.numbers(name), rel=1e-5), name


@pytest.mark.parametrize("case", ["sharded", "replicated", "adapters", "reference"])
def test_parameters_and_optimizer_state_are_the_same_bits_afterwards(
    machine: Machine, tmp_path: Path, case: str
) -> None:
    job = Job(machine.crew(machine.text(*CASES[case])), BOTH_1)
    try:
        job.step()
        job.step()
        before = state(job.crew, tmp_path / "0")
        assert any(name.startswith("optimizer.exp_avg_sq") for name in before)
        for number, counts in enumerate([BOTH_2, ACTOR_4, ACTOR_2, BOTH_1]):
            moved = {each.group: each for each in job.scale(counts)}["actor"]
            after = state(job.crew, tmp_path / str(number + 1))
            same = {name: torch.equal(after[name], tensor) for name, tensor in before.items()}
            assert all(same.values()), (counts, [name for name, equal in same.items() if not equal])
            assert case == "replicated" or moved.moved_bytes > 0
        job.step()
    finally:
        job.close()


def test_a_replica_that_leaves_moves_nothing_and_one_that_comes_takes_everything_once(
    machine: Machine,
) -> None:
    job = Job(machine.crew(machine.text("backend.sharding=none")), BOTH_1)
    try:
        job.step()
        (coming,) = job.scale(ACTOR_2)
        held = sum(block.nbytes for block in job.crew.groups["actor"].call("tell").wait()[0].blocks)
        (leaving,) = job.scale(BOTH_1)
        assert (coming.moved_bytes, leaving.moved_bytes) == (held, 0)
    finally:
        job.close()
