"""Runs on a cluster of two nodes, one of which may be lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from two_nodes import ADDRESS, HEAD, OTHER, TwoNodes, why_not

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
RAY = ("engine.cpu_devices=1", f"--address={ADDRESS}")
PLACED = "placement={actor: {node_group: train, placement: 0}, rollout: {node_group: act, placement: 0}}"
LONG = ("train.steps=6", "checkpoint.every=2", "warm_start.steps=0", "eval.every=0", "mode=collocated")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    made = TwoNodes(tmp_path_factory.mktemp("nodes"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def on_head(cluster: TwoNodes, start: Callable[..., Any]) -> Callable[..., Any]:
    """Starts `rlinf ARGS` on the head node."""
    return lambda args, **more: start(
        args, before=cluster.command(HEAD), env=cluster.environment | more, cwd=str(Path.cwd())
    )


def test_ranks_on_two_nodes_end_with_the_weights_of_ranks_on_one(
    new_job: Callable[..., Any], start: Callable[..., Any], on_head: Callable[..., Any]
) -> None:
    here, there = new_job("mode=collocated"), new_job("mode=collocated")
    done = on_head(there.args(*RAY, engine="ray", ranks=2)).done(240)
    assert done.code == 0, done.err
    done = start(here.args(engine="local", ranks=2)).done(240)
    assert done.code == 0, done.err
    assert there.numbers() == here.numbers()
    assert there.weights() == here.weights()


def test_components_run_on_the_nodes_of_their_groups(
    new_job: Callable[..., Any], start: Callable[..., Any], cluster: TwoNodes, on_head: Callable[..., Any]
) -> None:
    here, there = new_job("placement={actor: 0, rollout: 1}"), new_job(PLACED)
    started = on_head(there.args(*RAY, engine="ray", ranks=2))
    started.wait_for(there.output, 0)
    lines = [Path(f"/proc/{pid}/cmdline") for pid in cluster.processes(OTHER)]
    found = [line.read_bytes() for line in lines if line.exists()]
    assert sum(b"rlinf_core.worker.host" in line for line in found) == 1
    done = started.done(240)
    assert done.code == 0, done.err
    done = start(here.args(engine="local", ranks=2)).done(240)
    assert done.code == 0, done.err
    assert there.numbers() == here.numbers()
    assert there.weights() == here.weights()


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_run_that_loses_a_node_is_told_at_once_and_goes_on_from_its_last_checkpoint(
    cluster: TwoNodes, job: Any, on_head: Callable[..., Any], restarts: int
) -> None:
    """By `--resume`, or by itself; on the node that is left, or on both when it has come back."""
    reward = f"--reward={job.folder / 'partial_reward.py'}:slow"
    given = (*LONG, *RAY, f"engine.restarts={restarts}", reward)
    started = on_head([arg for arg in job.args(*given, engine="ray") if not arg.startswith("--ranks")])
    started.wait_for(job.output, 3)
    cluster.lose_other()
    began = time.monotonic()
    try:
        if restarts:
            done = started.done(240)
            assert "The run goes on from its last checkpoint (0 restarts left)" in done.out + done.err
        else:
            done = started.done(60)
            assert time.monotonic() - began < 15
            assert done.code == 1
            assert f"lost with its node {OTHER}" in done.error
    finally:
        cluster.restore_other()
    if not restarts:
        assert job.metrics()[-1]["step"] < 6
        done = on_head(["train", f"--resume={job.output}"]).done(240)
    assert done.code == 0, done.err
    assert [record["step"] for record in job.metrics()] == list(range(7))
