"""What the machine offers, and the ranks that suit it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.cluster.devices import CudaDevice, Inventory, default_ranks, inventory

GPU = CudaDevice("a GPU", 2**30)


@pytest.mark.parametrize(
    ("cores", "gpus", "expected"),
    [
        (1, 0, (1, 1)),
        (2, 0, (2, 1)),
        (3, 0, (2, 1)),
        (8, 0, (2, 4)),
        (64, 0, (2, 4)),
        (16, 4, (4, 4)),
        (6, 4, (4, 1)),
        (2, 4, (4, 1)),
    ],
)
def test_ranks_and_threads_suit_the_machine(cores: int, gpus: int, expected: tuple[int, int]) -> None:
    assert default_ranks(Inventory(tuple(range(cores)), 2**30, lambda: (GPU,) * gpus)) == expected


def test_cores_are_those_of_the_affinity_mask(tmp_path: Path) -> None:
    assert inventory(tmp_path).cores == tuple(sorted(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)]
)
def test_a_quota_of_the_control_group_limits_the_cores(tmp_path: Path, quota: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert len(inventory(tmp_path).cores) == (cores or len(os.sched_getaffinity(0)))


def test_the_first_version_of_control_groups_is_understood(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("100000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712")
    found = inventory(tmp_path)
    assert len(found.cores) == 1
    assert found.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_memory_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1048576\n")
    assert inventory(tmp_path).memory_bytes == 1048576


def test_looking_at_cores_and_memory_imports_no_torch() -> None:
    script = (
        "import sys; from rlinf_core.cluster.devices import inventory; "
        "inventory(); print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
