"""Text and images to token ids and pixels, by a processor of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.api import TextProcessor
from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.types import IntArray, Message, Picture
    from rlinf_model_hf_vlm.config import HFVLMConfig

MARK = "<image>"  # where a prompt has an image
REMEMBERED = 4096  # encoded prompts: computed tasks ask the same about many pictures
Content = list[dict[str, str]]


class VisionProcessor(TextProcessor):
    """Wraps `processor`; `model_config` gives the context length."""

    def __init__(self, processor: Any, model_config: Any, config: HFVLMConfig, eos_ids: set[int]) -> None:
        self.processor = processor  # Any, above too: transformers types
        self.tokenizer = processor.tokenizer
        self._config = config
        self._name = config.path or config.preset
        self.eos_ids = frozenset(eos_ids)
        if not self.eos_ids:
            raise ModelError(f"model.path: {config.path} names no end-of-sequence token")
        pad = self.tokenizer.pad_token_id
        self.pad_id = pad if pad is not None else min(self.eos_ids)
        self.context_length = _context(model_config.get_text_config())
        end = self.tokenizer.eos_token_id
        self._close = end if end is not None else min(self.eos_ids)
        self._encoded: dict[tuple[object, ...], list[int]] = {}
        if config.image_size:
            self.image_processor.size = dict(config.image_size)

    @property
    def image_processor(self) -> Any:  # Any: a transformers type
        """What makes pixels of pictures."""
        return self.processor.image_processor

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        return self.encode_with_images(prompt, ())

    def encode_with_images(self, prompt: str | Sequence[Message], images: Sequence[Picture]) -> list[int]:
        """Every image takes the places that the model's processor gives it."""
        text = self._render(_turns(prompt, len(images)))
        if not images:
            return self._one_bos(self.tokenizer(text).input_ids)
        asked = (text, *(image.shape for image in images))  # how many places follows from the size alone
        if asked not in self._encoded:
            if len(self._encoded) >= REMEMBERED:
                self._encoded.clear()
            self._encoded[asked] = self._with_places(text, images)
        return list(self._encoded[asked])

    def pixels(
        self, prompts: Sequence[Sequence[Picture]]
    ) -> tuple[Mapping[str, Tensor], list[Sequence[int]]]:
        """What the vision encoder reads, and for each prompt which of its outputs belong to it.

        The encoder has an output a prompt that has images (Idefics3, which cuts images into parts), or
        one an image.
        """
        shown = [list(images) for images in prompts if len(images)]
        if not shown:
            return {}, [() for _ in prompts]
        found: Any = self.image_processor(images=shown, return_tensors="pt")
        tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
        a_prompt = tensors["pixel_values"].dim() == 5
        units: list[Sequence[int]] = []
        first = 0
        for images in prompts:
            count = min(1, len(images)) if a_prompt else len(images)
            units.append(range(first, first + count))
            first += count
        return tensors, units

    def encode_response(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return [*ids, self._close]

    def decode(self, token_ids: Sequence[int] | IntArray) -> str:
        text: str = self.tokenizer.decode([int(i) for i in token_ids], skip_special_tokens=True)
        return text

    def _with_places(self, text: str, images: Sequence[Picture]) -> list[int]:
        given = self.processor(text=[text], images=[list(images)])
        ids = self._one_bos([int(token) for token in given["input_ids"][0]])
        if len(ids) > self.context_length:
            places = ids.count(self.processor.image_token_id)
            raise ModelError(
                f"model.image_size: a prompt has {len(ids)} tokens, of which {places} are those of its "
                f"{len(images)} image(s), but the context of {self._name} is {self.context_length}; lower "
                f"model.image_size, which is {self.image_processor.size}"
            )
        return ids

    def _one_bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        start = 0
        while bos is not None and ids[start : start + 2] == [bos, bos]:
            start += 1
        return ids[start:]

    def _render(self, turns: list[dict[str, Any]]) -> str:
        template = getattr(self.processor, "chat_template", None) or self.tokenizer.chat_template
        if not template:
            token = str(self.processor.image_token)
            parts = [part for turn in turns for part in turn["content"]]
            return "".join(token if part["type"] == "image" else part["text"] for part in parts)
        if self._config.system_prompt and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": [_text(self._config.system_prompt)]})
        text: str = self.tokenizer.apply_chat_template(
            turns, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        return text


def _context(text_config: Any) -> int:
    """The longest sequence. Windows of attention count columns of a batch, padding too, so that prompts and
    responses have to fit into half a window each."""
    longest = int(text_config.max_position_embeddings)
    if "sliding_attention" in (getattr(text_config, "layer_types", None) or ()):
        return min(longest, int(text_config.sliding_window) // 2)
    return longest


def _turns(prompt: str | Sequence[Message], images: int) -> list[dict[str, Any]]:
    """Messages whose content has texts and places for images. Raises `ModelError` if there are more or fewer
    marks than images."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    marks = sum(message["content"].count(MARK) for message in messages) if images else 0
    if marks not in (0, images):
        raise ModelError(
            f"hf_vlm: a prompt has {marks} marks {MARK} and {images} image(s); mark each image once, or none "
            "to have them first"
        )
    turns = [{"role": message["role"], "content": _parts(message["content"], marks)} for message in messages]
    if images and not marks:
        user = next((turn for turn in turns if turn["role"] == "user"), turns[0])
        user["content"] = [*({"type": "image"} for _ in range(images)), *user["content"]]
    return turns


def _parts(text: str, marks: int) -> Content:
    if not marks:
        return [_text(text)]
    parts: Content = []
    for number, piece in enumerate(text.split(MARK)):
        if number:
            parts.append({"type": "image"})
        if piece:
            parts.append(_text(piece))
    return parts


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
