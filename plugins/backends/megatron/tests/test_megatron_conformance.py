"""The megatron backend passes the conformance kit, and its checkpoints move to other parallel sizes.

All of it in processes of their own, where `torch.cuda` stands for the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "megatron_cases.py"
MOVED = ("moved-to-tp2", "moved-to-pp2", "moved-to-dp2")


def ran(folder: Path, *names: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), *names]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    return {name: torch.load(folder / f"{name}.pt") for name in names}


@pytest.mark.slow
def test_megatron_conforms(tmp_path: Path) -> None:
    outcomes = ran(tmp_path, "conformance")["conformance"]
    assert set(outcomes.values()) == {"passed"}, outcomes


@pytest.mark.slow
def test_training_goes_on_bit_for_bit_after_the_device_was_left(tmp_path: Path) -> None:
    found = ran(tmp_path, "offloaded")["offloaded"]
    for name, weight in found["staying"].items():
        assert torch.equal(found["leaving"][name], weight), name
    assert found["left"] == 0
    parameters = sum(weight.numel() for weight in found["staying"].values())
    copies = 1 + 1 + 1 + 2 / 2  # policy, reference, gradients, half of both moments
    assert found["held"] >= 4 * copies * parameters


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return ran(tmp_path_factory.mktemp("moved"), *MOVED)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVED)
def test_a_checkpoint_of_two_tensor_parallel_ranks_goes_on_in_any_layout(
    name: str, moved: dict[str, dict[str, Any]]
) -> None:
    found, expected = moved[name], moved[name]["expected"]
    assert found["version"] == 4
    exact = name == "moved-to-tp2"
    for key, weight in expected["weights"].items():
        torch.testing.assert_close(
            found["weights"][key], weight, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-6
        )
    torch.testing.assert_close(found["norms"], expected["norms"], rtol=0 if exact else 1e-4, atol=0)
