"""Runs a script as several ranks, and inside of it keeps what its cases give: for tests of collectives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from rlinf_core.cluster.devices import free_port

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
