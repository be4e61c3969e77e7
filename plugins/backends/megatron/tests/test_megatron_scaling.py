"""Megatron's ranks and their layouts change while it trains: nothing comes out different.

In processes of their own, where `torch.cuda` stands for the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "megatron_scaled.py"
STEADY = {"experts": "steady-experts", "values": "steady-values"}


def ran(folder: Path, *names: str) -> dict[str, dict[str, Any]]:
    """What the cases keep."""
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), *names]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    return {name: torch.load(folder / f"{name}.pt") for name in names}


def check(found: dict[str, Any], steady: dict[str, Any]) -> None:
    """The state after each change is, bit for bit, what a trainer of that layout reads from a checkpoint of
    before; losses, gradients, weights and the reference are those of a run that has one rank throughout."""
    assert found["unlike"] == []
    kinds = {name.split(".")[0] for name in found["compared"]}
    assert {"model", "optimizer"} < kinds
    for name in ("norms", "losses"):
        one, other = ([each[name][key] for key in _keys(found[name])] for each in (found, steady))
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6 * max(map(abs, other))), name
    torch.testing.assert_close(found["reference"], steady["reference"], rtol=1e-5, atol=1e-5)


def _keys(curve: Any) -> Any:
    return sorted(curve) if isinstance(curve, dict) else range(len(curve))


@pytest.mark.slow
def test_data_parallel_ranks_and_every_layout_learn_what_one_rank_learns(tmp_path: Path) -> None:
    """One rank, two, one; and two replicas that become two halves of matrices, two stages, two replicas."""
    found = ran(tmp_path, "dp", "layouts", "steady")
    steady = found.pop("steady")
    for each in found.values():
        check(each, steady)
    assert "= 2 ranks, which do not divide the actor's 3" in found["layouts"]["refused"]
    comes, leaves = found["dp"]["moved"]
    assert 0 < leaves < comes  # one that leaves gives its half of the optimizer's state alone


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    ["dp-whole", "layouts-whole", "tp-dp", "context", "experts", "values"],
)
def test_others_do_too(name: str, tmp_path: Path) -> None:
    steady = STEADY.get(name, "steady")
    found = ran(tmp_path, name, steady)
    check(found[name], found[steady])


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["layouts-bf16", "layouts-bf16-whole", "adapters", "qwen3", "experts-4"])
def test_what_moves_is_what_a_checkpoint_has(name: str, tmp_path: Path) -> None:
    found = ran(tmp_path, name)[name]
    assert found["unlike"] == []
    kinds = {".".join(name.split(".")[:2]) for name in found["compared"]}
    assert ("optimizer.main" in kinds) == ("bf16" in name)
