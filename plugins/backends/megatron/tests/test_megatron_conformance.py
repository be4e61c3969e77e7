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
MIXED = ("packed-pp2", "one-after-the-other")
FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
MOVED = ("moved-to-tp2", "moved-to-pp2", "moved-to-dp2")


def ran(folder: Path, *names: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), *names]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    return {name: torch.load(folder / f"{name}.pt") for name in names}


@pytest.mark.slow
def test_megatron_conforms(tmp_path: Path) -> None:
    outcomes = ran(tmp_path, "conformance")["conformance"]
    ordered = outcomes.pop("check_backends_any_order")
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert ordered == "skipped the backend adds up gradients in one order only"  # no devices are lent to it


@pytest.mark.slow
def test_training_goes_on_bit_for_bit_after_the_device_was_left(tmp_path: Path) -> None:
    found = ran(tmp_path, "offloaded")["offloaded"]
    for name, weight in found["staying"].items():
        assert torch.equal(found["leaving"][name], weight), name
    assert found["left"] == 0
    assert found["told"] > 0  # what it has can be told all the same
    parameters = sum(weight.numel() for weight in found["staying"].values())
    copies = 1 + 1 + 1 + 2 / 2  # policy, reference, gradients, half of both moments
    assert found["held"] >= 4 * copies * parameters


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return ran(tmp_path_factory.mktemp("mixed"), *MIXED)


def largest_difference(got: dict[str, Any], expected: dict[str, Any]) -> float:
    """Of a gradient, over its norm."""
    return max(float((got[name] - gradient).norm() / gradient.norm()) for name, gradient in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_one_line_have_the_gradient_of_padded_ones(
    family: str, mixed: dict[str, dict[str, Any]]
) -> None:
    """Eight rows in four micro-batches, on the last of two stages."""
    found = mixed["packed-pp2"]
    assert found[f"{family} always packs"]
    assert not found[f"{family} never packs"]
    assert largest_difference(found[f"{family} always"], found[f"{family} never"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["always", "never"])
def test_micro_batches_in_the_pipeline_at_once_have_the_gradient_of_one_after_the_other(
    packing: str, mixed: dict[str, dict[str, Any]]
) -> None:
    found = mixed["packed-pp2"]
    assert largest_difference(found[f"qwen2 {packing}"], found[packing]) < 1e-6


@pytest.mark.slow
def test_trainers_follow_one_another_at_one_address(mixed: dict[str, Any]) -> None:
    """What two ranks sum is theirs and of one trainer: rank + number, over both."""
    assert mixed["one-after-the-other"] == [1.0, 3.0, 5.0, 7.0, 9.0]


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
