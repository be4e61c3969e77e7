"""The encoders against timm's, the layout of openvla-7b, and what becomes of pictures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rlinf_model_openvla.architecture import Architecture
from rlinf_model_openvla.network import OpenVLANetwork
from rlinf_model_openvla.pictures import Pictures
from rlinf_model_openvla.preset import tiny_record
from rlinf_model_openvla.vision import SHAPES, Encoder

from rlinf_core.errors import ModelError

sys.path.insert(0, str(Path(__file__).parent))
import openvla_support as support
import timm_peer

TIMM = {  # printed by timm_peer.py with timm 1.0.31
    "vit_large_patch14_reg4_dinov2": [-0.031735, 0.687648, 1.625047, 0.875642],
    "vit_so400m_patch14_siglip_224": [-4.157885, 5.064672, 3.26818, 17.826933],
}
SEVEN = {  # what `config.json` of openvla-7b says of sizes
    "image_sizes": [224, 224],
    "n_action_bins": 256,
    "pad_to_multiple_of": 64,
    "text_config": {
        "model_type": "llama",
        "pad_token_id": 32000,
        "torch_dtype": "bfloat16",
        "vocab_size": 32064,
    },
    "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"],
}


@pytest.mark.parametrize("name", TIMM)
def test_features_are_those_of_timms_second_to_last_block_without_class_and_register_tokens(
    name: str,
) -> None:
    encoder = Encoder(replace(SHAPES[name], **timm_peer.SIZES[name]), 56)
    timm_peer.fill(encoder.state_dict())
    with torch.no_grad():
        features = encoder(timm_peer.PIXELS)
    assert features.shape == (2, 16, timm_peer.SIZES[name]["embed_dim"])
    assert timm_peer.numbers(features) == pytest.approx(TIMM[name], rel=2e-5)


def test_the_full_size_has_the_names_and_shapes_of_openvla_7b() -> None:
    with torch.device("meta"):
        network = OpenVLANetwork(Architecture.of(SEVEN, "config.json"))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    dino, siglip = "vision_backbone.featurizer.", "vision_backbone.fused_featurizer."
    layer = "language_model.model.layers.31."
    expected = {
        dino + "cls_token": (1, 1, 1024),
        dino + "reg_token": (1, 4, 1024),
        dino + "pos_embed": (1, 256, 1024),
        dino + "patch_embed.proj.weight": (1024, 3, 14, 14),
        dino + "blocks.23.attn.qkv.weight": (3072, 1024),
        dino + "blocks.23.ls1.scale_factor": (1024,),
        dino + "blocks.23.mlp.fc1.weight": (4096, 1024),
        siglip + "pos_embed": (1, 256, 1152),
        siglip + "blocks.26.mlp.fc1.weight": (4304, 1152),
        siglip + "blocks.26.norm2.bias": (1152,),
        siglip + "attn_pool.kv.weight": (2304, 1152),
        siglip + "attn_pool.latent": (1, 1, 1152),
        "projector.fc1.weight": (8704, 2176),
        "projector.fc2.weight": (4096, 8704),
        "projector.fc3.weight": (4096, 4096),
        "language_model.model.embed_tokens.weight": (32064, 4096),
        layer + "self_attn.q_proj.weight": (4096, 4096),
        layer + "mlp.gate_proj.weight": (11008, 4096),
        "language_model.lm_head.weight": (32064, 4096),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    assert siglip + "cls_token" not in shapes
    assert siglip + "blocks.0.ls1.scale_factor" not in shapes
    parts = [
        sum(name.startswith(part) for name in shapes) for part in (dino, siglip, "projector.", "language")
    ]
    assert parts == [343, 342, 6, 32 * 9 + 3]  # timm's counts; nine matrices and norms a layer of Llama
    assert len(shapes) == sum(parts)
    assert sum(tensor.numel() for tensor in network.parameters()) == 7_541_237_184
    assert (network.tokens.vocabulary, network.tokens.first) == (32000, 31744)


def test_the_preset_is_the_same_architecture_in_small() -> None:
    network = support.tiny().module()
    assert sum(tensor.numel() for tensor in network.parameters()) < 2_000_000
    with torch.device("meta"):
        full = OpenVLANetwork(Architecture.of(SEVEN, "config.json"))
    blocks = {
        ".".join(part for part in name.split(".") if not part.isdigit()) for name in network.state_dict()
    }
    assert blocks == {
        ".".join(part for part in name.split(".") if not part.isdigit()) for name in full.state_dict()
    }


def test_what_lies_behind_the_features_is_not_trained() -> None:
    network = support.tiny().module()
    model = support.tiny(valued=True)
    seen, module = support.shown(), model.module()
    inputs = model.collate([support.trajectory(seen, model.act(module, seen, support.SEEDS))])
    outputs = model.policy_outputs(module, inputs, frozenset({"logprobs", "values"}))
    (outputs.logprobs_BT.sum() + outputs.values_BT.sum()).backward()
    reached = {name for name, parameter in module.named_parameters() if parameter.grad is not None}
    asked = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert reached == asked
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    assert {name.split(".")[2] for name in frozen} == {"blocks", "norm", "attn_pool"}
    assert {name.split(".")[3] for name in frozen if ".blocks." in name} == {"2"}


def test_pictures_are_resized_as_pillow_does_it_and_normalised_for_either_encoder() -> None:
    smooth = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    picture = np.array(Image.fromarray(smooth).resize((320, 240), Image.Resampling.BILINEAR))
    pixels = Pictures(56).pixels(torch.from_numpy(picture)[None])
    assert pixels.shape == (1, 6, 56, 56)
    peer = np.array(Image.fromarray(picture).resize((56, 56), Image.Resampling.BICUBIC)).astype(float)
    dino = pixels[0, :3].permute(1, 2, 0).numpy() * (0.228515625, 0.2236328125, 0.224609375)
    dino += np.array([0.484375, 0.455078125, 0.40625])
    assert np.abs(dino * 255 - peer).max() < 1.001
    siglip = (pixels[0, 3:].permute(1, 2, 0).numpy() * 0.5 + 0.5) * 255
    assert np.abs(siglip - peer).max() < 1.001
    same = Pictures(40).pixels(torch.full((1, 40, 40, 3), 51, dtype=torch.uint8))  # 51 / 255 = 0.2
    assert same[0, :, 7, 7].tolist() == pytest.approx(
        [(0.2 - 0.484375) / 0.228515625, (0.2 - 0.455078125) / 0.2236328125, (0.2 - 0.40625) / 0.224609375]
        + [-0.6] * 3
    )


def test_a_crop_keeps_its_share_of_the_area_about_the_centre() -> None:
    picture = torch.zeros(1, 40, 40, 3, dtype=torch.uint8)
    picture[:, 10:30, 10:30] = 255  # a quarter of the area
    pixels = Pictures(56).pixels(picture, crop_area=0.25)
    assert pixels[0, 3:].unique().tolist() == [1.0]
    assert Pictures(56).pixels(picture)[0, 3:].min() == -1.0


def test_a_checkpoint_may_bring_its_own_normalisation() -> None:
    applied = [{"mean": [0.1] * 3, "std": [0.2] * 3}, {"mean": [0.3] * 3, "std": [0.4] * 3}]
    own = Pictures.of(8, {"means": [[0.0] * 3] * 2, "stds": [[1.0] * 3] * 2, "tvf_normalize_params": applied})
    assert own.pixels(torch.full((1, 8, 8, 3), 51, dtype=torch.uint8))[0, :, 0, 0].tolist() == pytest.approx(
        [0.5] * 3 + [-0.25] * 3
    )
    plain = Pictures.of(8, {"means": [[0.0] * 3] * 2, "stds": [[1.0] * 3] * 2})
    assert plain.pixels(torch.full((1, 8, 8, 3), 51, dtype=torch.uint8))[0, 0, 0, 0] == pytest.approx(0.2)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(
        ModelError, match=r"X has no timm_model_ids, image_sizes, text_config: it is no OpenVLA"
    ):
        Architecture.of({"model_type": "llama"}, "X")
    with pytest.raises(
        ModelError, match=r"names the encoder 'vit_base.x'; known: vit_large_patch14_reg4_dinov2"
    ):
        Architecture.of({**SEVEN, "timm_model_ids": ["vit_base.x", "vit_base.y"]}, "X")
    with pytest.raises(ModelError, match="X describes linear over"):
        Architecture.of({**SEVEN, "arch_specifier": "linear"}, "X")
    with pytest.raises(ModelError, match=r"image_sizes differ: \[224, 384\]"):
        Architecture.of({**SEVEN, "image_sizes": [224, 384]}, "X")
    assert Architecture.of(tiny_record(), "X").image_size == 56
