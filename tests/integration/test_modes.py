"""One flow in three modes: the same parameters, whatever runs where and in whatever pieces."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlinf_core.api import HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.comm.stream import Stream
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import WorkerError
from rlinf_core.roles.ordering import GroupOrder
from rlinf_core.run.compose import make_source, start
from rlinf_core.run.graph import make_graph
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Plan
from rlinf_core.worker import WorkerGroup

sys.path.insert(0, str(Path(__file__).parent))
from trained_weights import REWARD, difference, published

pytestmark = pytest.mark.usefixtures("test_plugins")
MODES = ("collocated", "disaggregated", "hybrid")
STEPS = 3
TEXT = (
    "model=hf_lm",
    "model.preset=char-llama",
    "data=sort_digits",
    "sampling.max_new_tokens=8",
    "trackers=[]",
    "warm_start.steps=0",
    "train.prompts_per_step=6",
    "train.steps=3",
    "algo.group_size=4",
    "optimizer.lr=1e-4",
    "optimizer.eps=1e-6",  # with less, Adam blows the rounding of gradients near zero up to whole steps
    "ranks=2",
)


def settings(output: Path, *words: str) -> RunConfig:
    (output / "reward.py").write_text(REWARD)
    return replace(compose(Options(overrides=words)), output=str(output))


def trained(config: RunConfig, plan: Plan, then: Plan | None = None) -> dict[str, torch.Tensor]:
    """The parameters after three steps; from the second on by another plan, where one is given."""
    source = make_source(config)
    graph = start(config, plan)
    try:
        for step in range(STEPS):
            if step == 1 and then is not None:
                graph.apply(then)
            rows = graph.flow.step(source.train(step), step).rows
            assert rows
        return published(graph.actor)
    finally:
        graph.stop()


def plans_of(graph: Graph) -> dict[str, Plan]:
    plans = {mode: default_plan(graph, 2, mode) for mode in MODES}
    assert [plan.mode for plan in plans.values()] == list(MODES)
    return plans


def check_modes(config: RunConfig, plans: Mapping[str, Plan], moved_from: str) -> None:
    """Every mode, and a move between two in mid-run, trains to the same weights; and it does train."""
    found = {mode: trained(config, plan) for mode, plan in plans.items()}
    found["moved"] = trained(config, plans[moved_from], plans["collocated"])
    for mode in ("disaggregated", "hybrid", "moved"):
        assert difference(found[mode], found["collocated"]) < 1e-5, mode
    start_again = trained(replace(config, optimizer=replace(config.optimizer, lr=0.0)), plans["collocated"])
    assert difference(found["collocated"], start_again) > 1e-3


@pytest.mark.slow
def test_a_text_flow_learns_the_same_in_every_mode(tmp_path: Path) -> None:
    config = settings(tmp_path, *TEXT, "algo=grpo", f"reward={tmp_path / 'reward.py'}:letters")
    plans = plans_of(make_graph(config))
    assert plans["disaggregated"].assignments["rollout"].chunk == 4
    check_modes(config, plans, moved_from="disaggregated")


@pytest.mark.slow
def test_advantages_over_the_batch_see_all_of_it_in_every_mode(tmp_path: Path) -> None:
    config = settings(tmp_path, *TEXT, "algo=whiten", f"reward={tmp_path / 'reward.py'}:letters")
    plans = plans_of(make_graph(config))
    assert plans["disaggregated"].assignments["rollout"].chunk == 0
    found = {mode: trained(config, plan) for mode, plan in plans.items()}
    for mode in ("disaggregated", "hybrid"):
        assert difference(found[mode], found["collocated"]) < 1e-5, mode


def climbed(plan: Plan) -> tuple[float, list[int]]:
    """The weight after three steps of the test flow, and the chunks that each rank's last step took."""
    engine = LocalEngine(LocalConfig())
    try:
        hosts = engine.start([HostSpec("device0"), HostSpec("device1")])

        def group(name: str, target: str) -> WorkerGroup:
            at = [hosts[i] for i in plan.assignments[name].devices]
            return WorkerGroup.create(name, f"toy_workers:{target}", at, {}, ["cpu"] * len(at), 0)

        drawer, climber = group("drawer", "Drawer"), group("climber", "Climber")
        climber.intake = GroupOrder(4, 6, plan.assignments["drawer"].chunk)
        for step in range(STEPS):
            drawer.call("tell", climber.call_rank(0, "tell").result()).wait()
            requests = [[(6 * step + offset, replica) for replica in range(4)] for offset in range(6)]
            climbing = climber.stage("climb", drawer.stage("draw", Stream.of(requests)), route="broadcast")
            climbing.collect()
        return climber.call_rank(0, "tell").result(), climbing.result
    finally:
        engine.stop()


def test_a_test_flow_climbs_the_same_in_every_mode() -> None:
    graph = Graph(
        (Component("drawer"), Component("climber", lockstep=True)),
        (Edge("drawer", "climber", quantum=4),),
        24,
    )
    plans = plans_of(graph)
    found = {mode: climbed(plan) for mode, plan in plans.items()}
    assert [chunks for _, chunks in found.values()] == [[1, 1], [6], [1, 1]]
    weight = found["collocated"][0]
    assert 0.5 < weight < 3.0
    for mode in ("disaggregated", "hybrid"):
        assert found[mode][0] == pytest.approx(weight, rel=1e-12), mode


EMBODIED = (
    "simulator=gymnasium",
    "simulator.id=Reacher-v5",
    "simulator.max_episode_steps=20",
    "model=mlp_policy",
    "algo=grpo",
    "algo.group_size=4",
    "train.prompts_per_step=4",
    "train.num_envs=8",
    "train.steps=3",
    "trackers=[]",
    "optimizer.lr=1e-3",
    "optimizer.eps=1e-6",
    "ranks=2",
)


@pytest.mark.slow
def test_an_embodied_flow_learns_the_same_in_every_mode(tmp_path: Path) -> None:
    config = settings(tmp_path, *EMBODIED)
    plans = plans_of(make_graph(config))
    assert plans["hybrid"].stages == 2
    assert plans["hybrid"].assignments["environment"].devices == (0,)
    assert plans["hybrid"].assignments["rollout"].devices == (1,)
    check_modes(config, plans, moved_from="hybrid")


@pytest.mark.slow
@pytest.mark.parametrize(("device", "worker"), [(0, "environment[0]"), (1, "rollout[0]")])
def test_a_death_in_the_middle_of_a_rollout_is_named_within_seconds(
    tmp_path: Path, device: int, worker: str
) -> None:
    """Environments and policy wait for each other, so whoever is left must not wait for ever."""
    config = settings(tmp_path, *EMBODIED, "simulator.kwargs={frame_skip: 2000}")
    graph = start(config, plans_of(make_graph(config))["hybrid"])
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        os.kill(graph.crew.hosts.devices[device].process.pid, signal.SIGKILL)

    try:
        timer = threading.Timer(1.0, kill)
        timer.start()
        with pytest.raises(WorkerError, match=re.escape(worker)):
            graph.flow.step(make_source(config).train(0), 0)
        assert time.monotonic() - killed[0] < 5.0
    finally:
        timer.cancel()
        graph.stop()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["collocated", "hybrid"])
def test_a_policy_that_raises_is_named_with_its_own_error(tmp_path: Path, mode: str) -> None:
    config = settings(tmp_path, *EMBODIED, "model=sulky")
    graph = start(config, plans_of(make_graph(config))[mode])
    try:
        with pytest.raises(
            WorkerError, match=r"(rollout|environment)\[\d\]\.\w+ failed: ValueError: not in the mood"
        ):
            graph.flow.step(make_source(config).train(0), 0)
    finally:
        graph.stop()
