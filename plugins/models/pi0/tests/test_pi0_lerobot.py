"""Exports in LeRobot's layout, and actions beside those that LeRobot 0.6.1 made of such an export.

`SAYS` are the first two actions of two decisions: its `from_pretrained` loaded the folder (the sizes of its
networks set to those of the presets), its processors and policy were given `seen()` and noise of zeros.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlinf_core.api import Space
from rlinf_core.errors import ModelError

sys.path.insert(0, str(Path(__file__).parent))
import pi0_ranks as support
from rlinf_model_pi0 import layout, lerobot
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.model import Pi0

SAYS = {
    "tiny": [
        [[0.8624191, -1.1452750, 1.7504547], [0.8619983, -1.1440519, 1.7495475]],
        [[0.8825234, -1.1713364, 1.6978333], [0.8816061, -1.1699836, 1.6969047]],
    ],
    "tiny_pi05": [
        [[-3.6675510, -2.4984498, 1.3305686], [-3.6500704, -2.4819732, 1.3134176]],
        [[-0.8286509, -3.5205045, 2.0478516], [-0.9023089, -3.4473107, 2.0644760]],
    ],
}
STATISTICS = {
    "state": {
        "mean": [0.1, 0.2, -0.3, 0.4, 0.5],
        "std": [1.1, 1.2, 0.8, 0.9, 1.0],
        "q01": [-1.0, -2.0, -1.0, -1.0, -1.0],
        "q99": [1.0, 2.0, 3.0, 1.0, 2.0],
    },
    "actions": {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.5, 0.6, 0.7],
        "q01": [-1.0, -1.0, -0.5],
        "q99": [1.0, 0.5, 1.0],
    },
}
PICTURE = Space(shape=(56, 56, 3), low=0.0, high=255.0)
SPACES = {"state": Space(shape=(5,)), "images/left": PICTURE, "images/wrist": PICTURE}
BOX = Space(shape=(3,), low=-0.5, high=1.5)


def policy(folder: Path, preset: Any, **options: Any) -> Pi0:
    """A tiny one with statistics. Any: values of options."""
    file = folder / "numbers.json"
    file.write_text(json.dumps(STATISTICS))
    chosen = {"statistics": str(file), "prompt": "lift the cube", "train": "all", **options}
    model = Pi0(Pi0Config(preset=preset, **chosen))
    model.bind(SPACES, BOX)
    return model


def seen() -> dict[str, Tensor]:
    """What four environments show."""
    random = torch.Generator().manual_seed(0)
    state = torch.randn(4, 5, generator=random)
    pictures = [torch.randint(0, 256, (4, 56, 56, 3), generator=random, dtype=torch.uint8) for _ in range(2)]
    return {"state": state, "images/left": pictures[0], "images/wrist": pictures[1]}


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets are converted as if they had the published sizes."""
    monkeypatch.setattr(lerobot, "_variants", lambda architecture: ("gemma_2b", "gemma_300m"))


def converted(folder: Path, model: Pi0) -> Path:
    path = folder / "out"
    model.export(iter(support.wake(model.module(3)).state_dict().items()), path)
    model.convert_export(path, "lerobot")
    return path


def steps(path: Path) -> list[str]:
    return [step["registry_name"] for step in json.loads(path.read_text())["steps"]]


@pytest.mark.parametrize("preset", SAYS)
def test_actions_are_those_that_lerobot_makes(tmp_path: Path, preset: str) -> None:
    model = policy(tmp_path, preset)
    done = model.act(support.wake(model.module(3)), seen(), [1, 2, 3, 4], greedy=True)
    torch.testing.assert_close(done.actions[:2, :2], torch.tensor(SAYS[preset]), atol=1e-4, rtol=0)


@pytest.mark.usefixtures("any_size")
def test_a_policy_is_written_with_its_features_statistics_and_steps(tmp_path: Path) -> None:
    model = policy(tmp_path, "tiny", chunk=6)
    path = converted(tmp_path, model)
    record = json.loads((path / "config.json").read_text())
    assert record["type"] == "pi0"
    assert record["input_features"] == {
        "observation.images.left": {"type": "VISUAL", "shape": [3, 56, 56]},
        "observation.images.wrist": {"type": "VISUAL", "shape": [3, 56, 56]},
        "observation.state": {"type": "STATE", "shape": [5]},
    }
    assert record["output_features"] == {"action": {"type": "ACTION", "shape": [3]}}
    assert (record["chunk_size"], record["n_action_steps"], record["num_inference_steps"]) == (8, 6, 4)
    assert (record["image_resolution"], record["tokenizer_max_length"]) == ([56, 56], 48)
    names = set(load_file(path / "model.safetensors"))
    own = {f"model.{layout.published(name)}" for name in model.module(3).state_dict()}
    assert names == own
    first = ["rename_observations_processor", "to_batch_processor"]
    then = ["pi0_new_line_processor", "tokenizer_processor", "device_processor", "normalizer_processor"]
    assert steps(path / "policy_preprocessor.json") == [*first, *then]
    assert steps(path / "policy_postprocessor.json") == ["unnormalizer_processor", "device_processor"]
    before = load_file(path / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    behind = load_file(path / "policy_postprocessor_step_0_unnormalizer_processor.safetensors")
    assert before.keys() == behind.keys()
    for key, part in (("observation.state", "state"), ("action", "actions")):
        for name in ("mean", "std"):
            torch.testing.assert_close(before[f"{key}.{name}"], torch.tensor(STATISTICS[part][name]))


@pytest.mark.usefixtures("any_size")
def test_quantiles_become_means_and_deviations_and_stand_before_the_prompt_of_pi05(tmp_path: Path) -> None:
    path = converted(tmp_path, policy(tmp_path, "tiny_pi05"))
    assert json.loads((path / "config.json").read_text())["type"] == "pi05"
    names = steps(path / "policy_preprocessor.json")
    assert names.index("normalizer_processor") == 2
    assert names.index("pi05_prepare_state_tokenizer_processor_step") == 3
    found = load_file(path / "policy_preprocessor_step_2_normalizer_processor.safetensors")
    expected = {  # halfway between the quantiles, and half their distance
        "observation.state.mean": [0.0, 0.0, 1.0, 0.0, 0.5],
        "observation.state.std": [1.0, 2.0, 2.0, 1.0, 1.5],
        "action.mean": [0.0, -0.25, 0.25],
        "action.std": [1.0, 0.75, 0.75],
    }
    for name, numbers in expected.items():
        torch.testing.assert_close(found[name], torch.tensor(numbers), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("any_size")
def test_without_statistics_actions_have_the_units_of_the_box(tmp_path: Path) -> None:
    path = converted(tmp_path, policy(tmp_path, "tiny", statistics=""))
    found = load_file(path / "policy_postprocessor_step_0_unnormalizer_processor.safetensors")
    assert found["action.mean"].tolist() == [0.5, 0.5, 0.5]
    assert found["action.std"].tolist() == [1.0, 1.0, 1.0]
    assert found["observation.state.std"].tolist() == [1.0] * 5


def test_published_sizes_have_lerobots_names() -> None:
    from transformers import PI0Config

    shape = PI0Config.from_dict(layout.transformers_record({"type": "pi0"}, "here"))
    assert lerobot._variants(shape) == ("gemma_2b", "gemma_300m")


def test_what_lerobot_cannot_build_or_ask_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = policy(tmp_path, "tiny")
    with pytest.raises(ModelError, match="gemma_2b and gemma_300m; this one has 2 layers of width 128"):
        model.convert_export(tmp_path, "lerobot")
    with pytest.raises(ModelError, match="--format onnx: model Pi0 does not write it"):
        model.convert_export(tmp_path, "onnx")
    monkeypatch.setattr(lerobot, "_variants", lambda architecture: ("gemma_2b", "gemma_300m"))
    facts = model._bound.told("float32")
    with pytest.raises(ModelError, match="the simulator has none"):
        lerobot.refuse(model._architecture, replace(facts, state=0), state_in_prompt=True)
    with pytest.raises(ModelError, match=r"model\.state_in_prompt=false"):
        lerobot.refuse(model._architecture, replace(facts, five=True), state_in_prompt=False)
