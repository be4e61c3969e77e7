"""One and two ranks, replicated and sharded, whole and with adapters, train the same model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_core.adapters import adapted_module
from rlinf_core.api import LoRAConfig
from rlinf_core.testing.ranks import expect_same_training, run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import hf_vlm_ranks as ranks
import hf_vlm_support as support

SCRIPT = Path(__file__).with_name("hf_vlm_ranks.py")
Found = dict[int, dict[str, Any]]  # Any: what `hf_vlm_ranks.scenario` returns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf_vlm_ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    alone = {case: ranks.scenario(case, folder / "1" / case) for case in ranks.ALONE}
    return {1: alone, 2: run_ranks(SCRIPT, 2, folder / "2")}


@pytest.mark.slow
@pytest.mark.parametrize("case", ranks.CASES)
def test_two_ranks_give_the_weights_and_outputs_of_one_process(found: Found, case: str) -> None:
    expected, got = found[1][f"{case.rpartition('/')[0]}/none"], found[2][case]
    assert got["sharded"] == case.endswith("full")
    expect_same_training(got, expected, gap=5e-5)
    assert expected["outputs"]["values_BT"].std() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny-smolvlm", "tiny-qwen2_5_vl"])
def test_adapters_are_those_of_the_language_model(found: Found, preset: str) -> None:
    model = ranks.valued(preset)
    initial = dict(adapted_module(model, ranks.LORA, 3).named_parameters())
    (case,) = (case for case in ranks.CASES if case.startswith(f"{preset}/lora"))
    got = found[2][case]["weights"]
    assert got.keys() == initial.keys()
    moved = {name for name, weight in got.items() if not torch.equal(weight, initial[name])}
    assert moved == {name for name in got if "lora_" in name or "value_head" in name}
    assert {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in moved if "lora_" in name} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    assert not any(part in name for name in moved for part in ("vision", "visual", "connector", "lm_head"))


def test_adapters_may_be_asked_for_everywhere_or_by_name() -> None:
    def adapted(lora: LoRAConfig, **options: Any) -> set[str]:
        module = adapted_module(support.model("tiny-smolvlm", **options), lora)
        return {name for name, _ in module.named_parameters() if "lora_A" in name}

    everywhere = adapted(LoRAConfig(rank=2), adapters="all")
    assert any("vision_model" in name for name in everywhere)
    assert any("connector" in name for name in everywhere)
    assert not any("lm_head" in name for name in everywhere)
    queries = adapted(LoRAConfig(rank=2, target_modules=("q_proj",)))
    assert len(queries) == 2  # those of the two language layers, not that of the vision layer
    assert all("text_model" in name for name in queries)


def test_a_frozen_encoder_is_not_trained() -> None:
    module = support.model("tiny-qwen3_vl", freeze_vision=True).module(0)
    for name, parameter in module.named_parameters():
        assert parameter.requires_grad == name.startswith(("model.language_model.", "lm_head.")), name


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tiny-smolvlm/lora/full", "tiny-qwen2_5_vl/whole/full"])
def test_an_export_of_two_ranks_loads_and_judges_as_the_trainer_did(
    found: Found, folder: Path, case: str
) -> None:
    model = support.HFVLM(support.HFVLMConfig(path=str(folder / "2" / case / "export")))
    inputs = ranks.batch(model, [0, 1, 2, 3, 4]).inputs
    judged = model.policy_outputs(model.module().eval(), inputs, frozenset({"logprobs"}))
    expected_BT = found[2][case]["outputs"]["logprobs_BT"]
    torch.testing.assert_close(judged.logprobs_BT.detach(), expected_BT, rtol=0, atol=1e-4)
