"""One rank and two sharded ones, whole and with adapters, train the same OpenVLA-OFT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlinf_core.testing.ranks import expect_same_training, run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import oft_ranks as ranks
import oft_support as support

SCRIPT = Path(__file__).with_name("oft_ranks.py")
Found = dict[str, dict[str, Any]]  # Any: what `oft_ranks.scenario` returns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oft_ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return run_ranks(SCRIPT, 2, folder / "2")


def alone(case: str, folder: Path) -> dict[str, Any]:
    """The case of one process, which shards nothing."""
    return ranks.scenario(case, folder / f"1-{case}")


@pytest.mark.parametrize("case", ranks.CASES)
def test_two_ranks_give_the_weights_and_outputs_of_one_process(found: Found, folder: Path, case: str) -> None:
    expected, got = alone(case, folder), found[case]
    assert got["sharded"]
    expect_same_training(got, expected, gap=2e-5)
    assert expected["outputs"]["values_BT"].std() > 0.01


@pytest.mark.parametrize("case", ["tokens-whole-full", "continuous-whole-full"])
def test_all_that_is_used_moves(found: Found, case: str) -> None:
    first = ranks.small(case.partition("-")[0]).module(3)
    frozen = {name for name, parameter in first.named_parameters() if not parameter.requires_grad}
    for name, weight in found[case]["weights"].items():
        assert torch.equal(weight, first.state_dict()[name]) == (name in frozen), name
    parts = {name.split(".")[0] for name in found[case]["weights"]}
    own = {"proprio_projector", *(["action_head"] if case.startswith("continuous") else [])}
    assert own <= parts


@pytest.mark.parametrize("case", ranks.CASES)
def test_an_export_of_two_ranks_loads_and_judges_as_the_trainer_did(
    found: Found, folder: Path, case: str
) -> None:
    path = folder / "2" / case / "export"
    model = support.small("token", noise=1.0, path=str(path))
    inputs = ranks.batch(model, ranks.rows(case.partition("-")[0]), [0, 1, 2]).inputs
    judged = model.policy_outputs(model.module(), inputs, frozenset({"logprobs"}))
    torch.testing.assert_close(
        judged.logprobs_BT, found[case]["outputs"]["logprobs_BT"], atol=1e-4, rtol=1e-4
    )
    parts = sorted(file.name.partition("--")[0] for file in path.glob("*.pt"))
    assert parts == [*(["action_head"] if case.startswith("continuous") else []), "proprio_projector"]
    assert not any("lora" in name for name in load_file(path / "model.safetensors"))
    for file in path.glob("*.pt"):
        assert not any("lora" in name for name in torch.load(file))
