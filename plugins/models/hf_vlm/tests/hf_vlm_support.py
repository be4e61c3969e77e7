"""Rows with pictures for the tests of `hf_vlm`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rlinf_model_hf_vlm.config import HFVLMConfig
from rlinf_model_hf_vlm.model import HFVLM
from torch import Tensor

from rlinf_core.types import Prompt, Sample

PRESETS = ("tiny-smolvlm", "tiny-qwen2_5_vl", "tiny-qwen3_vl", "tiny-paligemma")
QUESTIONS = ("Count the red blocks", "Where is the green block, seen from the blue one?", "Count?")
LENGTHS = (3, 1, 4, 2, 5)  # of the responses; row 0 and row 3 are to one prompt


def model(preset: str = "tiny-smolvlm", **options: Any) -> HFVLM:
    return HFVLM(HFVLMConfig(preset=preset, **options))


def picture(number: int, pixels: int = 32) -> Any:
    """A picture of noise."""
    return np.random.default_rng(number).integers(0, 256, (pixels, pixels, 3), np.uint8)


def prompt(which: HFVLM, number: int) -> Prompt:
    """Question `number` about a picture of its own; question 2 is about two pictures."""
    images = tuple(picture(10 * number + i) for i in range(2 if number == 2 else 1))
    ids = which.processor().encode_with_images(QUESTIONS[number], images)
    return Prompt(number, np.array(ids), QUESTIONS[number], images=images)


def sample(to: Prompt, response: list[int]) -> Sample:
    return Sample(
        group=to.index,
        replica=0,
        seed=0,
        mask=np.ones(len(response), np.bool_),
        logprobs=np.zeros(len(response), np.float32),
        weight_version=0,
        prompt=to,
        response_ids=np.array(response),
    )


def rows(which: HFVLM) -> list[Sample]:
    """Five responses to three prompts."""
    random = np.random.default_rng(4)
    prompts = [prompt(which, number) for number in range(3)]
    return [
        sample(prompts[number], random.integers(10, 250, length).tolist())
        for number, length in zip((0, 1, 2, 0, 1), LENGTHS, strict=True)
    ]


@torch.no_grad()
def by_transformers(which: HFVLM, module: Any, row: Sample) -> Tensor:
    """Log-probabilities of one row by one call of transformers' own forward, nothing padded or kept."""
    own: Any = which.processor()
    pixels = own.image_processor(images=[list(row.prompt.images)], return_tensors="pt")
    given = {name: value for name, value in pixels.items() if isinstance(value, torch.Tensor)}
    ids_1L = torch.tensor([[*row.prompt.token_ids, *row.response_ids]])
    asked = len(row.prompt.token_ids)
    if which.config.preset.startswith("tiny-qwen"):
        given["mm_token_type_ids"] = (ids_1L == module.config.image_token_id).long()
    if which.config.preset == "tiny-paligemma":
        given["token_type_ids"] = (torch.arange(ids_1L.shape[1]) >= asked).long()[None]
    logits_TV = module(input_ids=ids_1L, **given).logits[0, asked - 1 : -1]
    return logits_TV.log_softmax(-1).gather(1, ids_1L[0, asked:, None])[:, 0]
