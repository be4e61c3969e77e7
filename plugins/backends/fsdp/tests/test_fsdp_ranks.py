"""One, two and three ranks, replicated and sharded, whole and with adapters, train the same policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_core.testing.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import fsdp_ranks as support

SCRIPT = Path(__file__).with_name("fsdp_ranks.py")
CASES = [f"{case}-{sharding}" for case in support.CASES for sharding in ("none", "full")]
Found = dict[int, dict[str, Any]]  # Any: what `fsdp_ranks.scenario` returns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return {size: run_ranks(SCRIPT, size, folder / str(size)) for size in (1, 2, 3)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_ranks_and_sharding_give_the_weights_of_one_process(found: Found, case: str, size: int) -> None:
    expected, got = found[1][f"{case.split('-')[0]}-none"], found[size][case]
    assert got["sharded"] == (size > 1 and case.endswith("full"))
    assert got["norms"] == pytest.approx(expected["norms"], rel=1e-5)
    assert max(expected["norms"]) > 0.05, "the norm is clipped"
    assert list(got["weights"]) == list(expected["weights"])
    for name, weight in expected["weights"].items():
        gap = float((got["weights"][name] - weight).norm() / weight.norm())
        assert gap < 1e-5, f"{name}: {gap:.2e}"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_run_resumes_bit_for_bit_also_after_an_absence_and_keeps_its_reference(
    found: Found, case: str, size: int
) -> None:
    got = found[size][case]
    assert got["parts"]
    assert got["resumed"]
    assert got["left_bytes"] == 0
    assert got["reference_gap"] < 1e-6
    assert got["sum"] == pytest.approx([0.1 * size, size * (size - 1) / 2], abs=1e-15)


def test_only_adapters_are_trained_and_the_names_are_those_of_the_adapted_module(found: Found) -> None:
    got = found[2]["lora-full"]
    assert got["trainable"] == 2 * 7 * 2, "two matrices for seven linear modules of two blocks"
    assert any(name.endswith("q_proj.lora_A.default.weight") for name in got["weights"])
    assert found[2]["whole-full"]["trainable"] == len(found[2]["whole-full"]["weights"])


@pytest.mark.parametrize("case", ["whole_valued", "lora_valued"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_sharded_and_replicated_policies_give_the_values_of_one_process(
    found: Found, case: str, size: int
) -> None:
    expected = found[1][f"{case}-none"]["values"]
    assert expected.std() > 0.01
    for sharding in ("none", "full"):
        torch.testing.assert_close(found[size][f"{case}-{sharding}"]["values"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["lora_valued-none", "lora_valued-full"])
def test_beside_adapters_the_value_head_is_trained_and_published_and_nothing_else_of_the_base(
    found: Found, case: str
) -> None:
    got, initial = found[2][case], dict(support.build(support.LORA, valued=True).policy.named())
    assert got["trainable"] == 2 * 7 * 2 + 2, "the adapters, and the weight and bias of the head"
    for name, weight in got["weights"].items():
        frozen = "lora_" not in name and "value_head" not in name
        assert torch.equal(weight, initial[name]) == frozen, name


@pytest.mark.parametrize(
    ("saved", "case"), [(2, "whole-full"), (3, "lora_valued-full"), (2, "whole_valued-none")]
)
def test_a_checkpoint_of_several_ranks_continues_on_one(
    found: Found, folder: Path, saved: int, case: str
) -> None:
    lora, valued = support.CASES[case.split("-")[0]]
    trainer = support.build(lora, valued=valued)
    trainer.load(folder / str(saved) / case / "checkpoint")
    assert trainer.version == 3
    assert support.train(trainer, range(3, 5)) == pytest.approx(found[1][case]["norms"][3:], rel=1e-5)
    for name, weight in support.weights(trainer).items():
        torch.testing.assert_close(weight, found[1][case]["weights"][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_an_export_has_the_adapters_merged(found: Found, folder: Path, size: int) -> None:
    weights = found[size]["lora-full"]["weights"]
    written = torch.load(folder / str(size) / "lora-full" / "export" / "weights.pt")
    name = "model.layers.1.mlp.up_proj"
    inside = f"base_model.model.{name}"
    delta = weights[f"{inside}.lora_B.default.weight"] @ weights[f"{inside}.lora_A.default.weight"]
    expected = weights[f"{inside}.base_layer.weight"] + delta * (8.0 / 4)
    torch.testing.assert_close(written[f"{name}.weight"], expected)
    assert float(delta.abs().max()) > 1e-4
    assert (folder / str(size) / "lora-full" / "export" / "adapter" / "adapter_model.safetensors").exists()
    assert not any("lora" in key for key in written)
