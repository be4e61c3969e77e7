"""Samples become tensors: every distinct prompt once, with its images, and the responses to it.

Axes: B rows, U distinct prompts, P prompt positions, T response positions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlinf_core.errors import ModelError
from rlinf_core.types import Experience, Prompt, Sample

if TYPE_CHECKING:
    from rlinf_model_hf_vlm.processor import VisionProcessor

PIXELS = "pixels."  # before the names that the image processor gives its outputs


def prompt_inputs(prompts: Sequence[Prompt], processor: VisionProcessor) -> dict[str, Tensor]:
    """The distinct prompts, padded on the right, and which of them each one of `prompts` is.

    `image_units` are positions in what the vision encoder returns, those of each prompt in order.
    """
    found: dict[tuple[object, ...], int] = {}
    prompt_of = [found.setdefault(_identity(prompt), len(found)) for prompt in prompts]
    distinct = [prompts[prompt_of.index(number)] for number in range(len(found))]
    ids_UP = np.full((len(distinct), max(len(prompt.token_ids) for prompt in distinct)), processor.pad_id)
    for row, prompt in zip(ids_UP, distinct, strict=True):
        row[: len(prompt.token_ids)] = prompt.token_ids
    pixels, units = processor.pixels([prompt.images for prompt in distinct])
    return {
        "prompt_ids": torch.from_numpy(ids_UP),
        "prompt_lengths": torch.tensor([len(prompt.token_ids) for prompt in distinct]),
        "prompt_of": torch.tensor(prompt_of),
        "image_units": torch.tensor([unit for each in units for unit in each], dtype=torch.int64),
        "image_counts": torch.tensor([len(each) for each in units]),
        **{f"{PIXELS}{name}": tensor for name, tensor in pixels.items()},
    }


def collate(rows: Sequence[Experience], width: int | None, processor: VisionProcessor) -> dict[str, Tensor]:
    """Prompts and responses, each padded on the right of its own columns."""
    samples = [row for row in rows if isinstance(row, Sample)]
    if len(samples) != len(rows) or not rows:
        raise ModelError(f"hf_vlm collates text samples, one or more; it was given {len(rows)} rows")
    longest = max(len(row.response_ids) for row in samples)
    width = longest if width is None else width
    if width < longest:
        raise ModelError(f"hf_vlm: width {width} is less than the longest response, {longest} tokens")
    ids_BT = np.full((len(rows), longest), processor.pad_id)
    for row, sample in zip(ids_BT, samples, strict=True):
        row[: len(sample.response_ids)] = sample.response_ids
    return {
        **prompt_inputs([sample.prompt for sample in samples], processor),
        "response_ids": torch.from_numpy(ids_BT),
        "response_lengths": torch.tensor([len(row.response_ids) for row in samples]),
        "width": torch.tensor(width),
    }


def _identity(prompt: Prompt) -> tuple[object, ...]:
    images = (zlib.crc32(image.tobytes()) for image in prompt.images)
    return (prompt.index, prompt.token_ids.tobytes(), *images)
