"""Packed rows train, on one rank and on two, sharded and recomputed too, to the weights of padded ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_core.testing.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import hf_lm_ranks as support

SCRIPT = Path(__file__).with_name("hf_lm_ranks.py")
Found = dict[int, dict[str, Any]]  # Any: what `hf_lm_ranks.scenario` returns


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("ranks")
    return {size: run_ranks(SCRIPT, size, folder / str(size)) for size in (1, 2)}


@pytest.mark.parametrize("case", support.CASES)
@pytest.mark.parametrize("size", [1, 2])
def test_packed_rows_train_to_the_weights_of_padded_ones_on_any_ranks(
    found: Found, case: str, size: int
) -> None:
    expected, got = found[1][f"{case.partition('/')[0]}/padded"], found[size][case]
    assert got["sharded"] == (size == 2 and case.endswith("sharded"))
    assert got["norms"] == pytest.approx(expected["norms"], rel=1e-5)
    for name, weight in expected["weights"].items():
        gap = float((got["weights"][name] - weight).norm() / weight.norm().clamp_min(1e-3))
        assert gap < 1e-5, f"{name}: {gap:.2e}"
    for name in ("logprobs_BT", "entropy_BT", "values_BT"):
        torch.testing.assert_close(got["outputs"][name], expected["outputs"][name], rtol=0, atol=2e-5)


def test_sharded_blocks_really_got_packed_rows(found: Found) -> None:
    assert found[2]["whole/sharded"]["packed_calls"] > 0
    assert found[2]["lora/sharded"]["packed_calls"] > 0
    assert found[1]["whole/padded"]["packed_calls"] == 0
