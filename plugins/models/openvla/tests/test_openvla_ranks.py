"""One and two ranks, replicated and sharded, whole and with adapters, train the same OpenVLA."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlinf_core.adapters import adapted_module
from rlinf_core.testing.ranks import expect_same_training, run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import openvla_ranks as ranks
import openvla_support as support

SCRIPT = Path(__file__).with_name("openvla_ranks.py")
Found = dict[int, dict[str, Any]]  # Any: what `openvla_ranks.scenario` returns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openvla_ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    alone = {case: ranks.scenario(case, folder / "1" / case) for case in ("whole-none", "lora-none")}
    return {1: alone, 2: run_ranks(SCRIPT, 2, folder / "2")}


@pytest.mark.parametrize("case", ranks.CASES)
def test_two_ranks_give_the_weights_and_outputs_of_one_process(found: Found, case: str) -> None:
    expected, got = found[1][f"{case.split('-')[0]}-none"], found[2][case]
    assert got["sharded"] == case.endswith("full")
    expect_same_training(got, expected, gap=2e-5)
    assert expected["outputs"]["values_BT"].std() > 0.01


def test_what_lies_behind_the_features_stays_as_it_was_and_all_else_moves(found: Found) -> None:
    first = support.tiny("token", chunk=3, valued=True).module(3)
    frozen = {name for name, parameter in first.named_parameters() if not parameter.requires_grad}
    for name, weight in found[2]["whole-full"]["weights"].items():
        assert torch.equal(weight, first.state_dict()[name]) == (name in frozen), name


def test_adapters_and_the_value_head_alone_are_trained_and_the_output_head_has_none(found: Found) -> None:
    model = support.tiny("token", chunk=3, valued=True)
    first = adapted_module(model, ranks.CASES["lora-none"][0], 3)
    initial = dict(first.named_parameters())
    got = found[2]["lora-full"]["weights"]
    assert got.keys() == initial.keys()
    moved = {name for name, weight in got.items() if not torch.equal(weight, initial[name])}
    assert all("lora_" in name or "value_head" in name for name in moved)
    adapted = {
        name.split(".lora_")[0].rsplit(".", 1)[-1]
        for name in moved
        if ".lora_" in name and "attn_pool" not in name  # which decay alone moves, and no feature passes
    }
    assert adapted == {
        *("qkv", "proj", "fc1", "fc2", "fc3"),
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    }
    assert not any("lm_head.lora" in name for name in got)


@pytest.mark.parametrize("case", ["whole-full", "lora-full"])
def test_an_export_of_two_ranks_loads_and_judges_as_the_trainer_did(
    found: Found, folder: Path, case: str
) -> None:
    path = folder / "2" / case / "export"
    model = support.tiny("token", chunk=3, path=str(path))
    inputs = ranks.batch(model, ranks.rows(), [0, 1, 2]).inputs
    judged = model.policy_outputs(model.module(), inputs, frozenset({"logprobs"}))
    torch.testing.assert_close(
        judged.logprobs_BT, found[2][case]["outputs"]["logprobs_BT"], atol=1e-4, rtol=0
    )
    written = load_file(path / "model.safetensors")
    assert not any("lora" in name for name in written)
    first = support.tiny().module(3)
    for name, parameter in first.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(written[name], parameter), name
