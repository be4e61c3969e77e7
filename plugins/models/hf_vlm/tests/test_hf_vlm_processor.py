"""Places of images among tokens, counted by hand; prompts that cannot be encoded; files of a checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
)

from rlinf_core.errors import ConfigError, ModelError

sys.path.insert(0, str(Path(__file__).parent))
import hf_vlm_support as support
from rlinf_model_hf_vlm.config import HFVLMConfig
from rlinf_model_hf_vlm.model import HFVLM

PRESETS = pytest.mark.parametrize("preset", support.PRESETS)


@pytest.mark.parametrize(
    ("preset", "before", "behind"),
    [  # 4 x 4 patches of 8 pixels, or 8 x 8 of 4 merged by 2 x 2
        ("tiny-smolvlm", ["<fake_token_around_image>", "<global-img>"], ["<fake_token_around_image>"]),
        ("tiny-qwen2_5_vl", ["<|vision_start|>"], ["<|vision_end|>"]),
        ("tiny-qwen3_vl", ["<|vision_start|>"], ["<|vision_end|>"]),
        ("tiny-paligemma", [], ["<s>"]),
    ],
)
def test_an_image_takes_sixteen_places(preset: str, before: list[str], behind: list[str]) -> None:
    processor: Any = support.model(preset).processor()
    ids = processor.encode_with_images("Count the red", [support.picture(0)])
    image = "<|image_pad|>" if "qwen" in preset else "<image>"
    words = [*before, *[image] * 16, *behind, "Count", "Ġthe", "Ġred"]
    end = ["Ċ"] if preset == "tiny-paligemma" else []
    assert processor.tokenizer.convert_ids_to_tokens(ids) == words + end
    two = processor.encode_with_images("Count the red", [support.picture(0), support.picture(1)])
    assert two.count(processor.processor.image_token_id) == 32


def test_images_stand_where_the_text_says() -> None:
    processor: Any = support.model("tiny-qwen2_5_vl").processor()
    pictures = [support.picture(0), support.picture(1)]
    messages = [
        {"role": "user", "content": "How <image> many"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "<image>the"},
    ]
    ids = processor.encode_with_images(messages, pictures)
    text = processor.tokenizer.decode(ids).replace("<|image_pad|>" * 16, "<|image_pad|>")
    picture = "<|vision_start|><|image_pad|><|vision_end|>"
    assert text == f"How {picture} manyone{picture}the"
    with pytest.raises(ModelError, match="a prompt has 1 marks <image> and 2 image"):
        processor.encode_with_images("a <image>", pictures)


def test_a_text_without_images_is_encoded_as_it_stands() -> None:
    processor = support.model("tiny-smolvlm").processor()
    ids = processor.encode_prompt("How many? <image>é")
    assert processor.decode(ids) == "How many? é"
    assert processor.encode_response("7")[-1] in processor.eos_ids
    assert processor.decode(processor.encode_response("7 é")) == "7 é"


def test_the_system_prompt_comes_first() -> None:
    processor = support.model("tiny-smolvlm", system_prompt="the").processor()
    ids = processor.encode_with_images("one", [support.picture(0)])
    assert processor.decode(ids[:3]) == "the"
    assert processor.decode(ids) == "theone"


def test_larger_pictures_take_more_places_and_too_many_are_refused() -> None:
    """Qwen keeps the shape: 64 x 32 pixels become 8 x 4 merged patches, 32 places."""
    wide: Any = support.model("tiny-qwen2_5_vl", image_size={"shortest_edge": 1, "longest_edge": 64 * 64})
    ids = wide.processor().encode_with_images("one", [np.zeros((64, 32, 3), np.uint8)])
    assert ids.count(wide.processor().processor.image_token_id) == 32
    message = "a prompt has 261 tokens, of which 256 .* image.* context of tiny-qwen2_5_vl is 256; lower"
    huge = support.model("tiny-qwen2_5_vl", image_size={"shortest_edge": 1, "longest_edge": 128 * 128})
    with pytest.raises(ModelError, match=message):
        huge.processor().encode_with_images("Count the red", [np.zeros((128, 128, 3), np.uint8)])


def test_windows_of_attention_limit_the_context() -> None:
    from rlinf_model_hf_vlm.processor import _context
    from transformers import Gemma2Config, Qwen2Config

    windows = Gemma2Config(max_position_embeddings=8192, sliding_window=4096, num_hidden_layers=2)
    assert _context(windows) == 2048
    assert _context(Qwen2Config(max_position_embeddings=8192, use_sliding_window=False)) == 8192


@PRESETS
def test_an_export_is_loaded_bit_for_bit_and_by_transformers(preset: str, tmp_path: Path) -> None:
    model = support.model(preset)
    model.add_value_head()
    module: Any = model.module(3)
    model.export(iter(module.state_dict().items()), tmp_path / "one")
    again = HFVLM(HFVLMConfig(path=str(tmp_path / "one")))
    loaded = again.module(0).state_dict()
    for name, tensor in module.state_dict().items():
        assert name.startswith("value_head") or torch.equal(tensor, loaded[name]), name
    again.export(iter(loaded.items()), tmp_path / "two")  # now from files, which are copied
    row = support.rows(model)[2]
    for path in (tmp_path / "one", tmp_path / "two"):
        copy = HFVLM(HFVLMConfig(path=str(path))).processor()
        assert copy.encode_with_images(row.prompt.text, row.prompt.images) == row.prompt.token_ids.tolist()
        theirs = AutoModelForImageTextToText.from_pretrained(path).eval()
        expected_T = support.by_transformers(model, module.eval(), row)
        torch.testing.assert_close(support.by_transformers(model, theirs, row), expected_T, rtol=0, atol=0)
        assert AutoTokenizer.from_pretrained(path).vocab_size == model.processor().tokenizer.vocab_size  # type: ignore[attr-defined]
        pixels = AutoImageProcessor.from_pretrained(path)(
            images=[list(row.prompt.images)], return_tensors="pt"
        )
        own = model.processor().image_processor(images=[list(row.prompt.images)], return_tensors="pt")  # type: ignore[attr-defined]
        assert torch.equal(pixels["pixel_values"], own["pixel_values"])
    if preset in ("tiny-smolvlm", "tiny-paligemma"):  # those of Qwen need torchvision, for videos
        assert AutoProcessor.from_pretrained(tmp_path / "two").image_token == "<image>"


def test_ends_of_generation_defaults_are_found_also_below_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = support.model()
    model.export(iter(model.module().state_dict().items()), tmp_path / "one")
    GenerationConfig(eos_token_id=[2, 40]).save_pretrained(tmp_path / "one")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (str(tmp_path / "one"), "~/one"):
        assert HFVLM(HFVLMConfig(path=path)).processor().eos_ids == {2, 40}


def test_paths_that_are_no_vision_language_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model.path: .*nowhere does not exist"):
        HFVLM(HFVLMConfig(path=str(tmp_path / "nowhere")))
    with pytest.raises(ModelError, match=r"no directory with a config\.json"):
        HFVLM(HFVLMConfig(path=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match=r"is a llama, which reads no images"):
        HFVLM(HFVLMConfig(path=str(tmp_path))).processor()
    with pytest.raises(ModelError, match="cannot load the weights"):
        HFVLM(HFVLMConfig(path=str(tmp_path))).module()
    with pytest.raises(ModelError, match=r"needs model.path .* or model.preset, one of tiny-smolvlm"):
        HFVLM(HFVLMConfig())
    with pytest.raises(ConfigError, match="hf_vlm has no preset 'tiny'; presets: tiny-smolvlm"):
        HFVLMConfig(preset="tiny")
    with pytest.raises(ConfigError, match="both set"):
        HFVLMConfig(preset="tiny-smolvlm", path="x")
    with pytest.raises(ConfigError, match=r"model.adapters: 'vision' is not one of language, all"):
        HFVLMConfig(adapters="vision")  # type: ignore[arg-type]
