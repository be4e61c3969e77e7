"""Folders of OpenVLA-OFT: OpenVLA's layout, with files of their own for what OFT adds."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from rlinf_model_openvla.architecture import Architecture
from rlinf_model_openvla.oft.heads import ActionHead, ProprioProjector
from rlinf_model_openvla.oft.network import OFTNetwork
from torch.nn import functional

from rlinf_core.errors import ConfigError, ModelError

sys.path.insert(0, str(Path(__file__).parent))
import oft_support as support

HEAD, PROPRIO = "action_head--latest_checkpoint.pt", "proprio_projector--latest_checkpoint.pt"
LIBERO: dict[str, Any] = {
    "action": {"q01": [-1.0, 0.0], "q99": [1.0, 4.0], "mask": [True, False]},
    "proprio": {"q01": [0.0, -1.0, 2.0], "q99": [4.0, 1.0, 2.0]},
}


def exported(path: Path, **options: Any) -> Any:
    """Writes a random policy with a value head; returns its module."""
    model = support.small(valued=True, **options)
    module = support.spread(model.module(3))
    model.export(iter(module.state_dict().items()), path)
    return module


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head", ["tokens", "continuous"])
def test_an_export_comes_back_bit_for_bit_and_acts_the_same(tmp_path: Path, dtype: Any, head: Any) -> None:
    module = exported(tmp_path, dtype=dtype, head=head)
    files = {file.name for file in tmp_path.iterdir()}
    assert files == {
        *("config.json", "dataset_statistics.json", "model.safetensors", "tokenizer.json", PROPRIO),
        *([HEAD] if head == "continuous" else []),
    }
    again = support.small(path=str(tmp_path), dtype=dtype)  # which parts there are, the folder says
    loaded = again.module(seed=9)
    written = {name: value for name, value in module.state_dict().items() if "value_head" not in name}
    assert loaded.state_dict().keys() == written.keys()
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in written.items())
    assert {value.dtype for value in loaded.state_dict().values()} == {getattr(torch, dtype)}
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])
    before = support.small(dtype=dtype, head=head).act(module, support.shown(), support.SEEDS)
    after = again.act(loaded, support.shown(), support.SEEDS)
    assert torch.equal(before.actions, after.actions)
    assert torch.equal(before.logprobs_N, after.logprobs_N)


def test_an_export_of_an_export_has_the_same_files(tmp_path: Path) -> None:
    exported(tmp_path / "one", head="continuous")
    (tmp_path / "one" / HEAD).rename(tmp_path / "one" / "action_head--150000_checkpoint.pt")
    model = support.small(path=str(tmp_path / "one"), value_units=4)
    model.export(iter(model.module().state_dict().items()), tmp_path / "two")
    names = {file.name for file in (tmp_path / "two").iterdir()}
    assert {HEAD, PROPRIO} <= names
    assert "action_head--150000_checkpoint.pt" not in names
    for name in names - {HEAD, PROPRIO}:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    for old, new in (("action_head--150000_checkpoint.pt", HEAD), (PROPRIO, PROPRIO)):
        before, after = (torch.load(tmp_path / p) for p in (f"one/{old}", f"two/{new}"))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_parts_have_the_names_and_shapes_of_the_published_ones() -> None:
    with torch.device("meta"):
        head, proprio = ActionHead(4096, 7), ProprioProjector(8, 4096)
    shapes = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    wide = 7 * 4096
    assert shapes == {
        "model.layer_norm1.weight": (wide,),
        "model.layer_norm1.bias": (wide,),
        "model.fc1.weight": (4096, wide),
        "model.fc1.bias": (4096,),
        **{
            f"model.mlp_resnet_blocks.{block}.ffn.{layer}.{name}": shape
            for block in (0, 1)
            for layer, name, shape in (
                (0, "weight", (4096,)),
                (0, "bias", (4096,)),
                (1, "weight", (4096, 4096)),
                (1, "bias", (4096,)),
            )
        },
        "model.layer_norm2.weight": (4096,),
        "model.layer_norm2.bias": (4096,),
        "model.fc2.weight": (7, 4096),
        "model.fc2.bias": (7,),
    }
    assert {name: tuple(value.shape) for name, value in proprio.state_dict().items()} == {
        "fc1.weight": (4096, 8),
        "fc1.bias": (4096,),
        "fc2.weight": (4096, 4096),
        "fc2.bias": (4096,),
    }


def test_the_action_head_computes_what_its_names_say() -> None:
    head = support.spread(ActionHead(4, 2))
    states = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    w = {name.removeprefix("model."): value for name, value in head.state_dict().items()}

    def layer(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    hidden = functional.relu(layer("fc1", norm("layer_norm1", states)))
    for block in ("mlp_resnet_blocks.0.ffn", "mlp_resnet_blocks.1.ffn"):
        hidden = hidden + functional.relu(layer(f"{block}.1", norm(f"{block}.0", hidden)))
    expected = layer("fc2", norm("layer_norm2", hidden))
    torch.testing.assert_close(head(states), expected)


def test_a_libero_chunk_of_the_full_size_reads_as_published() -> None:
    record = {
        "image_sizes": [224, 224],
        "text_config": {"model_type": "llama", "pad_token_id": 32000, "vocab_size": 32064},
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
    }
    with torch.device("meta"):
        network = OFTNetwork(Architecture.of(record, "config.json"), 2)
        network.proprio_projector = ProprioProjector(8, 4096)
        seen = network.seen(torch.zeros(5, 12, 224, 224), torch.zeros(5, 8))
        states = network.slots(
            torch.zeros(1, 12, 224, 224),
            torch.zeros(1, 20, dtype=torch.int64),
            torch.full((1,), 20),
            torch.zeros(1, 8),
            56,
        )
    assert seen.shape == (5, 2 * 256 + 1, 4096)
    assert states.shape == (1, 56, 4096)
    assert network.tokens.first == 32000 - 256


def test_statistics_scale_actions_and_states_by_hand(tmp_path: Path) -> None:
    exported(tmp_path)
    own = json.loads((tmp_path / "dataset_statistics.json").read_text())
    assert own == {
        "simulator": {
            "action": {"q01": [-0.5] * 2, "q99": [1.5] * 2, "mask": [True] * 2},
            "proprio": {"q01": [-2.0] * 3, "q99": [2.0] * 3, "mask": [True] * 3},
        }
    }
    (tmp_path / "dataset_statistics.json").write_text(json.dumps({"libero_spatial_no_noops": LIBERO}))
    model = support.small(path=str(tmp_path), gripper="negative_sign")
    module = model.module()
    seen = support.shown()
    # 0..4 is -1..1, so 1 is -0.5 and 9 is cut to 1; -1..1 stays; what never moved is 0
    seen["state"] = torch.tensor([[1.0, 0.25, 2.0], [9.0, -3.0, 2.0], [2.0, 1.0, 2.0], [0.0, 0.0, 2.0]])
    shown: list[torch.Tensor] = []
    module.proprio_projector.register_forward_pre_hook(lambda _, args: shown.append(args[0]))
    sample = model.act(module, seen, support.SEEDS)
    assert shown[0].tolist() == [[-0.5, 0.25, 0.0], [1.0, -1.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]
    middle = ((336 - sample.latents.double() - 1).clamp(0, 14) * 2 / 15 - 1 + 1 / 15).unflatten(1, (3, 2))
    torch.testing.assert_close(sample.actions[..., 0], middle[..., 0].float())  # -1..1
    torch.testing.assert_close(
        sample.actions[..., 1], -torch.sign(2 * middle[..., 1] - 1).float()
    )  # unmasked
    with pytest.raises(ModelError, match=r"no statistics of 'libero_goal' in .*: libero_spatial_no_noops"):
        support.small(path=str(tmp_path), unnorm_key="libero_goal")
    (tmp_path / "dataset_statistics.json").write_text(json.dumps({"x": {"action": LIBERO["action"]}}))
    with pytest.raises(
        ModelError, match=r"unnorm_key .openvla_oft.: the proprio statistics of 'x' .* no q01"
    ):
        support.small(path=str(tmp_path))


def test_a_checkpoint_of_openvla_gets_new_parts_and_keeps_its_own(tmp_path: Path) -> None:
    module = exported(tmp_path, proprio="none")
    model = support.small(path=str(tmp_path), head="continuous")
    made, other = model.module(seed=1), model.module(seed=2)
    assert torch.equal(made.state_dict()["projector.fc1.weight"], module.projector.fc1.weight)
    name = "action_head.model.fc1.weight"
    assert torch.equal(made.state_dict()[name], model.module(seed=1).state_dict()[name])
    assert not torch.equal(made.state_dict()[name], other.state_dict()[name])
    assert not any(tensor.is_meta for tensor in made.parameters())
    assert "proprio_projector.fc1.weight" not in made.state_dict()


def test_files_of_parts_are_read_as_tensors_alone_and_have_to_fit(tmp_path: Path) -> None:
    def model() -> Any:
        return support.small(path=str(tmp_path))

    exported(tmp_path, head="continuous")
    head = torch.load(tmp_path / HEAD)
    torch.save({f"module.{name}": value for name, value in head.items()}, tmp_path / HEAD)
    loaded = model().module().state_dict()  # as several devices left it
    assert all(torch.equal(loaded[f"action_head.{name}"], value) for name, value in head.items())
    torch.save({**head, "model.fc2.bias": torch.zeros(3)}, tmp_path / HEAD)
    with pytest.raises(
        ModelError, match=r"fit 2 dimensions of .*: model.fc2.bias is \(3,\), asked for is \(2,"
    ):
        model().module()
    torch.save(Fraction(1, 2), tmp_path / HEAD)
    with pytest.raises(ModelError, match=r"model.path .openvla_oft.: cannot read .*action_head"):
        model().module()
    torch.save([torch.zeros(1)], tmp_path / HEAD)
    with pytest.raises(ModelError, match="holds no names with tensors"):
        model().module()
    torch.save(head, tmp_path / "action_head--5_checkpoint.pt")
    with pytest.raises(ModelError, match=r"several files of action_head: .*--5_.*, .*--latest_.*; keep one"):
        model()._continuous  # noqa: B018 - a property that reads the folder
    short = {**LIBERO, "proprio": {"q01": [0.0], "q99": [1.0]}}
    (tmp_path / "dataset_statistics.json").write_text(json.dumps({"x": short}))
    with pytest.raises(
        ModelError, match=r"statistics of 'x' are of states of 1 numbers, the simulator's has 3"
    ):
        model()


def test_unusable_settings_are_refused_by_name() -> None:
    for options in (
        {"head": "both"},
        {"proprio": "yes"},
        {"noise": 0.0},
        {"cameras": ("a", "a")},
        {"cameras": ("a", "b", "c", "d")},
        {"chunk": 0},
    ):
        with pytest.raises(ConfigError, match=f"model.{next(iter(options))} .openvla_oft."):
            support.OpenVLAOFTConfig(**{"preset": "tiny", **options})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model.sizes .openvla_oft.*a checkpoint brings its own"):
        support.OpenVLAOFTConfig(path="x", sizes=support.SIZES)
    for sizes in (
        {"depth": 1},
        {"image_size": 60},
        {"width": 63},
        {"heads": 64},
        {"state_bound": 0.0},
        {"bins": 1},
    ):
        with pytest.raises(ConfigError, match=f"model.sizes.{next(iter(sizes))} .openvla_oft."):
            support.TinySizes(**sizes)  # type: ignore[arg-type]
