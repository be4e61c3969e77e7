"""Checkpoints in the layouts of LeRobot and OpenPI: read, and written as they were read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlinf_core.errors import ModelError

sys.path.insert(0, str(Path(__file__).parent))
import pi0_ranks as support
from rlinf_model_pi0 import layout
from rlinf_model_pi0.statistics import find_statistics

PRESETS = ["tiny", "tiny_pi05"]
MOMENTS = {
    name: torch.full((8,), float(i + 1)) for i, name in enumerate(("mean", "std", "q01", "q99", "min"))
}


def foreign(folder: Path, preset: Any, prefix: str) -> dict[str, torch.Tensor]:
    """A folder as others write it: the weights by their published names; returns them. The sizes are those of
    a preset, which no other layout can state, so `config.json` is that of transformers."""
    model = support.flow(preset=preset)
    module = support.wake(model.module(3))
    model.export(iter(module.state_dict().items()), folder)
    file = folder / "model.safetensors"
    tensors = {prefix + name: value for name, value in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("prefix", ["", "model."])
def test_weights_are_read_under_either_beginning_and_written_under_the_same(
    tmp_path: Path, preset: Any, prefix: str
) -> None:
    tensors = foreign(tmp_path / "one", preset, prefix)
    (tmp_path / "one" / "policy_preprocessor.json").write_text("{}")
    (tmp_path / "one" / "assets" / "arm").mkdir(parents=True)
    (tmp_path / "one" / "assets" / "arm" / "norm_stats.json").write_text('{"norm_stats": {}}')
    model = support.flow(path=str(tmp_path / "one"))
    module = model.module(9)
    own = support.wake(support.flow(preset=preset).module(3)).state_dict()
    assert module.state_dict().keys() == own.keys()
    assert all(torch.equal(value, own[name]) for name, value in module.state_dict().items())
    model.export(iter(module.state_dict().items()), tmp_path / "two")
    again = load_file(tmp_path / "two" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(value, tensors[name]) for name, value in again.items())
    for name in ("policy_preprocessor.json", "assets/arm/norm_stats.json", "config.json"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_names_are_the_published_ones(tmp_path: Path) -> None:
    names = set(foreign(tmp_path, "tiny", ""))
    vlm, expert = "paligemma_with_expert.paligemma.", "paligemma_with_expert.gemma_expert."
    assert {
        f"{vlm}model.vision_tower.vision_model.embeddings.patch_embedding.weight",
        f"{vlm}model.vision_tower.vision_model.encoder.layers.0.self_attn.out_proj.bias",
        f"{vlm}model.vision_tower.vision_model.post_layernorm.weight",
        f"{vlm}model.multi_modal_projector.linear.weight",
        f"{vlm}model.language_model.layers.1.self_attn.q_proj.weight",
        f"{vlm}model.language_model.norm.weight",
        f"{vlm}lm_head.weight",
        f"{expert}model.layers.0.mlp.up_proj.weight",
        f"{expert}model.norm.weight",
        f"{expert}lm_head.weight",
        *(f"{name}.{kind}" for name in ("state_proj", "action_in_proj") for kind in ("weight", "bias")),
        *(f"action_time_mlp_{way}.weight" for way in ("in", "out")),
        "action_out_proj.weight",
    } <= names
    assert not any(name.startswith(("model.", "embed_action_time.")) for name in names)


def test_sizes_are_read_from_the_configs_of_lerobot_and_openpi() -> None:
    from transformers import PI0Config

    lerobot = {
        "type": "pi05",
        "chunk_size": 50,
        "n_action_steps": 50,
        "max_state_dim": 32,
        "max_action_dim": 32,
        "num_inference_steps": 10,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "device": "cpu",
    }
    openpi = {
        "action_dim": 32,
        "action_horizon": 10,
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "precision": "bfloat16",
    }
    made = [PI0Config.from_dict(layout.transformers_record(record, "F")) for record in (lerobot, openpi)]
    assert [each.chunk_size for each in made] == [50, 10]
    for each in made:
        assert (each.max_state_dim, each.max_action_dim, each.num_inference_steps) == (32, 32, 10)
        assert (each.dit_config.hidden_size, each.vlm_config.text_config.intermediate_size) == (1024, 16384)
    with pytest.raises(ModelError, match=r"F holds a 'smolvla' model, not pi0 or pi05"):
        layout.transformers_record({"type": "smolvla"}, "F")
    with pytest.raises(ModelError, match=r"F says paligemma_variant 'dummy'; only gemma_2b is known"):
        layout.transformers_record({**openpi, "paligemma_variant": "dummy"}, "F")


def test_statistics_of_lerobot_and_openpi_are_found(tmp_path: Path) -> None:
    assert find_statistics("", str(tmp_path)) is None
    parts = {"state": "observation.state", "actions": "action"}
    tensors = {f"{key}.{name}": value.clone() for key in parts.values() for name, value in MOMENTS.items()}
    save_file(tensors, tmp_path / "policy_preprocessor_step_2_normalizer_processor.safetensors")
    found = find_statistics("", str(tmp_path))
    assert found is not None
    assert found.parts["actions"] == {
        "mean": [1.0] * 8,
        "std": [2.0] * 8,
        "q01": [3.0] * 8,
        "q99": [4.0] * 8,
    }
    (tmp_path / "policy_preprocessor_step_2_normalizer_processor.safetensors").unlink()
    for robot in ("arm", "other"):
        (tmp_path / "assets" / robot).mkdir(parents=True)
        record = {"norm_stats": {"state": {"mean": [0.0], "std": [1.0]}, "actions": {"q01": [0], "q99": [2]}}}
        (tmp_path / "assets" / robot / "norm_stats.json").write_text(json.dumps(record))
    with pytest.raises(
        ModelError, match=r"holds several: assets/arm/norm_stats.json, assets/other.*name one"
    ):
        find_statistics("", str(tmp_path))
    named = find_statistics(str(tmp_path / "assets" / "arm" / "norm_stats.json"), str(tmp_path))
    assert named is not None
    assert named.parts["state"] == {"mean": [0.0], "std": [1.0]}


def test_pi05_takes_quantiles_and_pi0_moments_unless_told(tmp_path: Path) -> None:
    record = {
        part: {"mean": [1.0] * 5, "std": [2.0] * 5, "q01": [0.0] * 5, "q99": [4.0] * 5}
        for part in ("state", "actions")
    }
    file = tmp_path / "statistics.json"
    file.write_text(json.dumps(record))
    state = {"state": torch.full((1, 5), 3.0)}
    for preset, normalization, expected in (
        ("tiny", "auto", 1.0),  # (3 - 1) / 2
        ("tiny_pi05", "auto", 0.5),  # half way from the middle, 2, to 4
        ("tiny_pi05", "mean_std", 1.0),
    ):
        model = support.flow(preset=preset, statistics=str(file), normalization=normalization)
        assert float(model._bound.state(state)[0, 0]) == pytest.approx(expected, abs=1e-5)
