"""Runs a script as several ranks, and inside of it keeps what its cases give: for tests of collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.api import LossTerms
from rlinf_core.cluster.devices import free_port

if TYPE_CHECKING:
    from rlinf_core.api import PolicyOutputs, TrainBatch

RESULTS = "results.pt"


def run_ranks(script: Path, size: int, folder: Path, timeout_s: float = 150.0) -> dict[str, Any]:
    """`script FOLDER` in `size` processes that find one another; what `keep_results` wrote there. The folder
    is made. Raises `AssertionError` if a rank fails."""
    folder.mkdir()
    common = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, str(script), str(folder)]
    ranks = [subprocess.Popen(command, env={**common, "RANK": str(rank)}) for rank in range(size)]
    try:
        codes = [process.wait(timeout=timeout_s) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if any(codes):
        raise AssertionError(f"{script.name}: its {size} ranks ended with {codes}")
    results: dict[str, Any] = torch.load(folder / RESULTS)
    return results


def keep_results(names: Iterable[str], scenario: Callable[[str], Any], folder: Path) -> None:
    """In a rank: every case one after the other, by name; rank 0 writes the results."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    results = {name: scenario(name) for name in names}
    if int(os.environ.get("RANK", "0")) == 0:
        torch.save(results, folder / RESULTS)
    if dist.is_initialized():
        dist.destroy_process_group()


def policy_and_value_loss(outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
    """Policy gradient with entropy, and values that learn the advantages: every output gets a gradient."""
    if outputs.entropy_BT is None or outputs.values_BT is None:
        raise AssertionError("the model gave no entropies or no values")
    gained = outputs.logprobs_BT * batch.advantages_BT
    missed = (outputs.values_BT - batch.advantages_BT).square()
    return LossTerms((missed - gained - 0.01 * outputs.entropy_BT)[batch.mask_BT].sum())


def expect_same_training(got: dict[str, Any], expected: dict[str, Any], *, gap: float) -> None:
    """Two trainings had the same `norms` (of gradients, 1e-4 of each), ended with the same `weights` (each
    within `gap` of its norm) and give the same `outputs` (1e-4). Raises `AssertionError`."""
    torch.testing.assert_close(torch.tensor(got["norms"]), torch.tensor(expected["norms"]), rtol=1e-4, atol=0)
    if list(got["weights"]) != list(expected["weights"]):
        raise AssertionError(f"weights {list(got['weights'])}, expected {list(expected['weights'])}")
    for name, weight in expected["weights"].items():
        away = float((got["weights"][name] - weight).norm() / weight.norm().clamp_min(1e-3))
        if not away < gap:
            raise AssertionError(f"{name}: {away:.2e}")
    for name, value in expected["outputs"].items():
        torch.testing.assert_close(got["outputs"][name], value, rtol=1e-4, atol=1e-4)
