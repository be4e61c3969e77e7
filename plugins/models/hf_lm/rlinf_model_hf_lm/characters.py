"""Character-level text for the presets, without transformers, and its export as an HF tokenizer."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.api import TextProcessor
from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from rlinf_core.types import IntArray, Message

SPECIALS = ("<pad>", "<s>", "</s>")
PAD, BOS, EOS = 0, 1, 2
SMALL_ALPHABET = "0123456789+-*=>,() "
FULL_ALPHABET = string.printable


class CharProcessor(TextProcessor):
    """One id a character. A character outside the alphabet is an error that names it."""

    def __init__(self, alphabet: str, context_length: int) -> None:
        self.eos_ids = frozenset({EOS})
        self.pad_id = PAD
        self.context_length = context_length
        self.vocabulary = (*SPECIALS, *alphabet)
        self._ids = {text: index for index, text in enumerate(self.vocabulary)}

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        text = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
        return [BOS, *self._encode(text)]

    def encode_response(self, text: str) -> list[int]:
        return [*self._encode(text), EOS]

    def encode_text(self, text: str) -> list[int]:
        return [self._ids[character] for character in text if character in self._ids]

    def decode(self, token_ids: Sequence[int] | IntArray) -> str:
        special = len(SPECIALS)
        return "".join(self.vocabulary[int(i)] for i in token_ids if special <= i < len(self.vocabulary))

    def save(self, path: Path) -> None:
        """Write a tokenizer that `AutoTokenizer` loads and that gives the same ids."""
        from tokenizers import Tokenizer, decoders, models, processors
        from transformers import PreTrainedTokenizerFast

        tokenizer = Tokenizer(models.BPE(vocab=dict(self._ids), merges=[]))
        tokenizer.decoder = decoders.Fuse()
        bos = SPECIALS[BOS]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, BOS)]
        )
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=SPECIALS[PAD],
            bos_token=bos,
            eos_token=SPECIALS[EOS],
            model_max_length=self.context_length,
            clean_up_tokenization_spaces=False,
        ).save_pretrained(path)

    def _encode(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError as err:
            known = "".join(self.vocabulary[len(SPECIALS) :])
            raise ModelError(
                f"hf_lm: character {err.args[0]!r} of {text!r} is not in this preset's alphabet {known!r}; "
                "use another model.preset or a real model by model.path"
            ) from err
