"""Architectures without a preset: log-probabilities of one row against one call of transformers' forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rlinf_model_hf_vlm import architecture, outputs
from transformers import AutoModelForImageTextToText, Gemma3Config, LlavaConfig, Qwen2VLConfig

from rlinf_core.types import Sampling

IMAGE, PLACES = 7, 16
TEXT: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
CONFIGS = {
    "llava": lambda: LlavaConfig(
        vision_config={"model_type": "siglip_vision_model", **SIGLIP},
        text_config={"model_type": "llama", **TEXT},
        image_token_index=IMAGE,
        vision_feature_select_strategy="full",
    ),
    "gemma3": lambda: Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **SIGLIP},
        text_config={**TEXT, "head_dim": 8, "sliding_window": 512},
        mm_tokens_per_image=PLACES,
        image_token_index=IMAGE,
    ),
    "qwen2_vl": lambda: Qwen2VLConfig(
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4},
        text_config={**TEXT, "rope_parameters": ROPE},
        image_token_id=IMAGE,
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
@torch.no_grad()
def test_log_probabilities_are_those_of_transformers(kind: str) -> None:
    torch.manual_seed(0)
    config: Any = CONFIGS[kind]()
    module: Any = AutoModelForImageTextToText.from_config(config).eval()
    architecture.check(module)
    asked, said = torch.tensor([[3, *[IMAGE] * PLACES, 4, 5]]), torch.tensor([[11, 12, 13]])
    if kind == "qwen2_vl":  # 8 x 8 patches of 4 x 4 pixels, two frames and three colours
        pixels = {"pixel_values": torch.randn(64, 96), "image_grid_thw": torch.tensor([[1, 8, 8]])}
    else:
        pixels = {"pixel_values": torch.randn(1, 3, 32, 32)}
    ids_1L = torch.cat([asked, said], dim=1)
    types = {"qwen2_vl": "mm_token_type_ids", "gemma3": "token_type_ids"}
    extra = {types[kind]: (ids_1L == IMAGE).long()} if kind in types else {}
    logits_TV = module(input_ids=ids_1L, **pixels, **extra).logits[0, asked.shape[1] - 1 : -1]
    expected_T = logits_TV.log_softmax(-1).gather(1, said[0, :, None])[:, 0]
    inputs = {
        "prompt_ids": torch.nn.functional.pad(asked, (0, 2)),
        "prompt_lengths": torch.tensor([asked.shape[1]]),
        "prompt_of": torch.tensor([0, 0]),
        "image_units": torch.tensor([0]),
        "image_counts": torch.tensor([1]),
        "response_ids": said.repeat(2, 1),
        "response_lengths": torch.tensor([3, 3]),
        "width": torch.tensor(3),
        **{f"pixels.{name}": value for name, value in pixels.items()},
    }
    found = outputs.policy_outputs(module, inputs, {"logprobs"}, Sampling(), {2})
    for logprobs_T in found.logprobs_BT:
        torch.testing.assert_close(logprobs_T, expected_T, rtol=0, atol=1e-5)
