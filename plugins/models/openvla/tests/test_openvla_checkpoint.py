"""Folders in the layout of openvla-7b: written, read again, and refused where they are not one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rlinf_model_openvla import checkpoint
from rlinf_model_openvla.config import OpenVLAConfig
from rlinf_model_openvla.model import OpenVLA
from safetensors.torch import load_file, save_file

from rlinf_core.errors import ModelError

sys.path.insert(0, str(Path(__file__).parent))
import openvla_support as support

BRIDGE = {"bridge": {"action": {"q01": [-1.0, 0.0], "q99": [1.0, 4.0], "mask": [True, True]}}}


def exported(path: Path, **options: Any) -> torch.nn.Module:
    """Writes a random policy with a value head; returns it."""
    model = support.tiny(valued=True, **options)
    module = support.spread(model.module(3))
    model.export(iter(module.state_dict().items()), path)
    return module


def change(path: Path, name: str, **fields: Any) -> None:
    record = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**record, **fields}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_comes_back_bit_for_bit_and_acts_the_same(tmp_path: Path, dtype: Any) -> None:
    module = exported(tmp_path, dtype=dtype)
    again = support.tiny(path=str(tmp_path), dtype=dtype)
    loaded = again.module(seed=9)
    written = {name: value for name, value in module.state_dict().items() if "value_head" not in name}
    assert loaded.state_dict().keys() == written.keys()
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in written.items())
    assert {value.dtype for value in loaded.state_dict().values()} == {getattr(torch, dtype)}
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])
    before = support.tiny(dtype=dtype).act(module, support.shown(), support.SEEDS)
    after = again.act(loaded, support.shown(), support.SEEDS)
    assert torch.equal(before.actions, after.actions)
    assert torch.equal(before.logprobs_N, after.logprobs_N)


def test_an_export_of_an_export_has_the_same_files(tmp_path: Path) -> None:
    exported(tmp_path / "one")
    (tmp_path / "one" / "modeling_prismatic.py").write_text("raise SystemExit('remote code was run')\n")
    (tmp_path / "one" / "preprocessor_config.json").write_text('{"means": [[0, 0, 0], [0, 0, 0]]}')
    model = support.tiny(path=str(tmp_path / "one"), value_units=4)
    model.export(iter(model.module().state_dict().items()), tmp_path / "two")
    names = {file.name for file in (tmp_path / "two").iterdir()}
    assert names == {
        "config.json",
        "dataset_statistics.json",
        "model.safetensors",
        "modeling_prismatic.py",
        "preprocessor_config.json",
        "tokenizer.json",
    }
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert not any("value_head" in name for name in load_file(tmp_path / "two" / "model.safetensors"))


def test_a_file_has_the_names_of_the_published_ones_and_timms_are_read_too(tmp_path: Path) -> None:
    module = exported(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    scale = "vision_backbone.featurizer.blocks.0.ls1.scale_factor"
    assert scale in tensors
    assert "language_model.lm_head.weight" in tensors
    save_file({name.replace("scale_factor", "gamma"): value for name, value in tensors.items()}, file)
    loaded = support.tiny(path=str(tmp_path)).module()
    assert torch.equal(loaded.state_dict()[scale], module.state_dict()[scale])


def test_large_weights_are_written_and_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported(tmp_path)
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 500_000)
    module = exported(tmp_path)  # over the files of before
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert set(index["weight_map"].values()) == set(files)
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) >= 3
    held = {name: value for name, value in module.state_dict().items() if "value_head" not in name}
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in held.values())
    loaded = support.tiny(path=str(tmp_path)).module().state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in held.items())


def test_a_fine_tunes_own_statistics_come_before_those_of_the_config(tmp_path: Path) -> None:
    exported(tmp_path)
    own = json.loads((tmp_path / "config.json").read_text())["norm_stats"]
    assert own == {"simulator": {"action": {"q01": [-0.5] * 2, "q99": [1.5] * 2, "mask": [True] * 2}}}
    change(tmp_path, "config.json", norm_stats=BRIDGE)
    (tmp_path / "dataset_statistics.json").unlink()
    model = support.tiny(path=str(tmp_path), unnorm_key="bridge")
    sample = model.act(model.module(), support.shown(), support.SEEDS)
    middle = (576 - sample.latents.double() - 1).clamp(0, 254) * 2 / 255 - 1 + 1 / 255
    expected = torch.stack([middle[:, 0], 2 + 2 * middle[:, 1]], 1)  # to -1..1 and to 0..4
    torch.testing.assert_close(sample.actions[:, 0], expected.float())
    (tmp_path / "dataset_statistics.json").write_text(json.dumps({"mine": BRIDGE["bridge"]}))
    with pytest.raises(ModelError, match=r"no statistics of 'bridge' in .*dataset_statistics.json; .*: mine"):
        support.tiny(path=str(tmp_path), unnorm_key="bridge")


def test_a_folder_that_is_no_checkpoint_is_told_what_is_wrong_with_it(tmp_path: Path) -> None:
    def model() -> OpenVLA:
        return OpenVLA(OpenVLAConfig(path=str(tmp_path / "one")))

    with pytest.raises(ModelError, match="is no folder; give one in the layout of openvla-7b"):
        model().module()
    exported(tmp_path / "one")
    weights = tmp_path / "one" / "model.safetensors"
    tensors = load_file(weights)
    name = "projector.fc1.bias"
    save_file({key: value for key, value in tensors.items() if key != name}, weights)
    with pytest.raises(
        ModelError, match=r"1 weights in .*; projector.fc1.bias is missing, asked for is \(384,"
    ):
        model().module()
    save_file({**tensors, "vision_backbone.third.bias": torch.zeros(1)}, weights)
    with pytest.raises(ModelError, match=r"third.bias is \(1,\), asked for is nothing"):
        model().module()
    weights.write_bytes(b"no tensors")
    with pytest.raises(ModelError, match=r"cannot read .*model.safetensors"):
        model().module()
    weights.unlink()
    with pytest.raises(ModelError, match=r"holds no .safetensors file"):
        model().module()
    (tmp_path / "one" / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot read the tokenizer"):
        _ = model().prompts
    (tmp_path / "one" / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config.json holds no JSON object"):
        model().module()


def test_bits_of_a_policy_do_not_depend_on_the_value_head(tmp_path: Path) -> None:
    exported(tmp_path)
    plain, valued = support.tiny(path=str(tmp_path)), support.tiny(path=str(tmp_path), valued=True)
    first, second = plain.module(1).state_dict(), valued.module(1).state_dict()
    assert all(torch.equal(second[name], value) for name, value in first.items())
    head = valued.value_head(valued.module(1))
    assert head is not None
    assert [tuple(parameter.shape) for parameter in head.parameters()] == [(8, 64), (8,), (1, 8), (1,)]
    assert not any(parameter.is_meta for parameter in head.parameters())
    again = valued.module(1).state_dict()
    assert torch.equal(second["value_head.0.weight"], again["value_head.0.weight"])


def test_a_preset_cannot_be_exported_before_it_knows_what_actions_mean_but_has_all_else(
    tmp_path: Path,
) -> None:
    model = OpenVLA(OpenVLAConfig(preset="tiny"))
    model.export(iter(model.module().state_dict().items()), tmp_path)
    with pytest.raises(ModelError, match="several data sets; name one: none"):
        support.tiny(path=str(tmp_path))
    assert OpenVLA(OpenVLAConfig(path=str(tmp_path))).module() is not None
