"""Groups whose number of ranks changes while a run goes on: nothing is lost, nothing comes out different."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.plan import Assignment, Plan

sys.path.insert(0, str(Path(__file__).parent))
from scaled_crew import Job, Machine, plan, state, trained

ONE, TWO = plan({"rollout": 1, "actor": 1}), plan({"rollout": 2, "actor": 2})
ACTOR_2, ACTOR_4 = plan({"rollout": 1, "actor": 2}), plan({"rollout": 2, "actor": 4})
CASES = {
    "sharded": ("backend.sharding=full",),
    "replicated": ("backend.sharding=none",),
    "adapters": ("backend.sharding=full", "lora.rank=4"),
    "reference": ("backend.sharding=full", "algo.kl_coef=0.1"),
}
CRITIC = ("backend.sharding=full", "algo={name: ppo, critic: own}")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("scaling"), 4)
    try:
        yield made
    finally:
        made.engine.stop()


def check_same(scaled: Job, steady: Job) -> None:
    """Both learned the same from the same rows."""
    for name in ("train/grad_norm", "train/reward", "train/response_length"):
        assert scaled.numbers(name) == pytest.approx(steady.numbers(name), rel=1e-5), name
    for one, other in zip(scaled.steps, steady.steps, strict=True):
        assert [(row.group, row.replica, row.reward) for row in one.rows] == [
            (row.group, row.replica, row.reward) for row in other.rows
        ]


@pytest.mark.parametrize(
    "words", [CASES["reference"], pytest.param(CRITIC, marks=pytest.mark.slow)], ids=["reference", "critic"]
)
def test_a_run_that_scales_learns_what_one_that_does_not_learns(
    machine: Machine, words: tuple[str, ...]
) -> None:
    config = machine.text(*words)
    scaled = trained(machine.crew(config), [ONE, ACTOR_2, ONE, TWO, ONE])
    check_same(scaled, trained(machine.crew(config), [ONE] * 5))


@pytest.mark.parametrize("case", ["sharded", "adapters", pytest.param("reference", marks=pytest.mark.slow)])
def test_parameters_and_optimizer_state_are_the_same_bits_afterwards(
    machine: Machine, tmp_path: Path, case: str
) -> None:
    job = Job(machine.crew(machine.text(*CASES[case])), ONE)
    try:
        job.step()
        before = state(job.crew, tmp_path / "0")
        assert any(name.startswith("optimizer.exp_avg_sq") for name in before)
        for number, wanted in enumerate([TWO, ACTOR_4, ACTOR_2, ONE] if case == "sharded" else [TWO, ONE]):
            moved = {each.group: each for each in job.scale(wanted)}["actor"]
            after = state(job.crew, tmp_path / str(number + 1))
            unlike = [name for name, tensor in before.items() if not torch.equal(after[name], tensor)]
            assert not unlike, (wanted, unlike)
            assert moved.moved_bytes > 0
        job.step()
    finally:
        job.close()


def test_a_replica_that_leaves_moves_nothing_and_one_that_comes_takes_everything_once(
    machine: Machine, tmp_path: Path
) -> None:
    job = Job(machine.crew(machine.text(*CASES["replicated"])), ONE)
    try:
        job.step()
        before = state(job.crew, tmp_path / "0")
        (coming,) = job.scale(ACTOR_2)
        held = sum(block.nbytes for block in job.crew.groups["actor"].call("tell").wait()[0].blocks)
        (leaving,) = job.scale(ONE)
        assert (coming.moved_bytes, leaving.moved_bytes) == (held, 0)
        after = state(job.crew, tmp_path / "1")
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    finally:
        job.close()


@pytest.mark.slow
def test_ranks_that_would_have_to_wait_for_one_another_are_refused_where_devices_are_lent(
    machine: Machine,
) -> None:
    def placed(*actor: int) -> Plan:
        return Plan({"rollout": Assignment((0, 1)), "actor": Assignment(actor)})

    job = Job(machine.crew(machine.text(*CASES["sharded"], "schedule.dynamic=in-step")), placed(0))
    try:
        job.step()
        change = job.crew.change(placed(0, 1))
        with pytest.raises(ConfigError, match="wait for each other in every micro-batch"):
            change.prepare()
        change.abandon()
        assert len(job.step().rows) == len(job.steps[0].rows)
    finally:
        job.close()


def test_the_actor_may_move_to_devices_that_it_did_not_have(machine: Machine, tmp_path: Path) -> None:
    elsewhere = Plan({"rollout": Assignment((0,)), "actor": Assignment((2, 1))})
    swapped = Plan({"rollout": Assignment((0,)), "actor": Assignment((1, 2))})
    last = Plan({"rollout": Assignment((0,)), "actor": Assignment((2,))})  # of which one is left
    job = Job(machine.crew(machine.text(*CASES["sharded"])), ONE)
    try:
        job.step()
        before = state(job.crew, tmp_path / "0")
        for number, wanted in enumerate([elsewhere, swapped, last]):
            job.scale(wanted)
            after = state(job.crew, tmp_path / str(number + 1))
            left = set() if wanted is not last else {"random.1"}  # of a rank that is no more
            assert before.keys() - after.keys() == left
            assert all(torch.equal(after[name], before[name]) for name in before.keys() - left)
            job.step()
            before = state(job.crew, tmp_path / f"{number + 1}-trained")
    finally:
        job.close()


@pytest.mark.parametrize(
    "apart", [pytest.param(False, marks=pytest.mark.slow), True], ids=["beside the policy", "apart from it"]
)
def test_environments_and_their_policy_grow_and_shrink(machine: Machine, apart: bool) -> None:
    def placed(count: int, actor: int) -> Plan:
        rollout = (3,) if apart else tuple(range(count))
        sets = {"environment": tuple(range(count)), "rollout": rollout, "actor": tuple(range(actor))}
        return Plan({name: Assignment(each) for name, each in sets.items()}, 2 if apart else 1)

    config = machine.robot()
    together = plan({"environment": 1, "rollout": 1, "actor": 1})
    scaled = trained(machine.crew(config), [placed(1, 1), placed(2, 2), placed(3, 1), placed(1, 1)])
    check_same(scaled, trained(machine.crew(config), [together] * 4))


def test_responses_that_a_leaving_rank_has_begun_are_continued_by_others(machine: Machine) -> None:
    def placed(*devices: int) -> Plan:
        return Plan({"rollout": Assignment(devices), "actor": Assignment((0,))})

    config = machine.text("train.max_staleness=2", "train.partial_rollouts=true", "train.steps=7")
    plans = [placed(1, 2), placed(1, 2), placed(1), placed(1), placed(1, 3, 2), placed(3), placed(3)]
    scaled = trained(machine.crew(config), plans)
    check_same(scaled, trained(machine.crew(config), [placed(1, 2)] * 7))


def storm(machine: Machine, config: RunConfig, events: int, seed: int, mixed: Callable[..., Plan]) -> None:
    """Random changes under load, each prepared while a step is made: no row is lost, and the numbers of
    ranks, the versions and the gradients are what they should be."""
    draw = random.Random(seed)
    job = Job(machine.crew(config), mixed(1, 1))
    try:
        groups = config.train.prompts_per_step
        rows = len(job.step().rows)
        for event, (acts, trains) in enumerate(
            (draw.randint(1, 3), draw.choice([1, 1, 2, 2, 3, 4])) for _ in range(events)
        ):
            job.scale_beside_a_step(mixed(acts, trains))
            sizes = {name: group.size for name, group in job.crew.groups.items()}
            assert (sizes["rollout"], sizes["actor"]) == (acts, trains), event
            result = job.steps[-1]
            assert (len(result.rows), len({row.group for row in result.rows})) == (rows, groups), event
            assert {row.weight_version for row in result.rows} == {len(job.steps) - 1}, event
        job.step()
        assert job.crew.groups["actor"].call("version").wait() == [len(job.steps)] * trains
    finally:
        job.close()


def text_mix(acts: int, trains: int) -> Plan:
    return plan({"rollout": acts, "actor": trains})


def robot_mix(acts: int, trains: int) -> Plan:
    return plan({"environment": acts, "rollout": acts, "actor": trains})


def test_random_changes_under_load_lose_nothing(machine: Machine) -> None:
    storm(machine, machine.text("backend.sharding=full"), 8, 1, text_mix)
    storm(machine, machine.robot(), 6, 2, robot_mix)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", ["sharded", "adapters"])
def test_hundreds_of_random_changes_to_a_language_job_lose_nothing(
    machine: Machine, case: str, seed: int
) -> None:
    storm(machine, machine.text(*CASES[case], "train.steps=200"), 38, seed, text_mix)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_hundreds_of_random_changes_to_a_robot_job_lose_nothing(machine: Machine, seed: int) -> None:
    storm(machine, machine.robot("train.steps=200"), 50, seed, robot_mix)
