"""One and two ranks, replicated, sharded and recomputed, with and without adapters, train the same flow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_core.testing.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import pi0_ranks as support

SCRIPT = Path(__file__).with_name("pi0_ranks.py")
Found = dict[int, dict[str, Any]]  # Any: what `pi0_ranks.scenario` returns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return {size: run_ranks(SCRIPT, size, folder / str(size)) for size in (1, 2)}


@pytest.mark.parametrize("name", support.NAMES)
@pytest.mark.parametrize("size", [1, 2])
def test_any_ranks_and_sharding_train_what_one_process_does(found: Found, name: str, size: int) -> None:
    expected, got = found[1][f"{name.split('-')[0]}-none"], found[size][name]
    assert got["sharded"] == (size > 1 and "full" in name)
    assert got["norms"] == pytest.approx(expected["norms"], rel=1e-4)
    assert got["weights"].keys() == expected["weights"].keys()
    for weight, tensor in expected["weights"].items():
        torch.testing.assert_close(got["weights"][weight], tensor, atol=2e-5, rtol=1e-4, msg=weight)
    torch.testing.assert_close(got["values"], expected["values"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", support.CASES)
def test_only_what_is_to_be_trained_moves(found: Found, case: str) -> None:
    options, lora = support.CASES[case]
    before = dict(support.flow(valued=True, **options).module(3).named_parameters())
    after = found[2][f"{case}-full"]["weights"]
    moved = {
        name
        for name, tensor in after.items()
        if name in before and not torch.equal(tensor, before[name].detach())
    }
    if lora.rank:
        named = {name.removeprefix("base_model.model.").replace(".base_layer", ""): name for name in after}
        still = [name for name in before if "value_head" not in name]
        assert all(torch.equal(after[named[name]], before[name].detach()) for name in still)
        assert any("lora_B" in name and bool(tensor.any()) for name, tensor in after.items())
    elif case == "expert":
        assert {"value_head.weight", "action_out_proj.weight"} <= moved
        assert not any(name.startswith("model.vlm.") for name in moved)
    else:
        assert any(name.startswith("model.vlm.vision_tower.") for name in moved)
        assert ("noise_head.weight" in moved) == (case == "learned")
    assert "model.dit.embed_tokens.weight" not in moved


@pytest.mark.parametrize("case", support.CASES)
def test_an_export_of_two_ranks_has_the_trained_weights_with_adapters_merged(
    found: Found, folder: Path, case: str
) -> None:
    options, lora = support.CASES[case]
    kept = {name: value for name, value in options.items() if name != "preset"} | {"noise": "sde"}
    again = support.flow(path=str(folder / "2" / f"{case}-full"), **kept).module(0)
    trained = found[2][f"{case}-full"]["weights"]
    for name, tensor in again.named_parameters():
        if not lora.rank:
            assert torch.equal(tensor.detach(), trained[name]), name
    if lora.rank:
        fresh = support.flow(**options).module(3)
        changed = [n for n, t in again.named_parameters() if not torch.equal(t, fresh.get_parameter(n))]
        assert len(changed) > 20
