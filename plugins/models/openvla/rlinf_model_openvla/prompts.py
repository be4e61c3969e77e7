"""Instructions to token ids."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BOS, STOP, SPACE = "<s>", "</s>", "▁"
BEFORE, BEHIND = "In: What action should the robot take to ", "?\nOut:"
TOKENIZER = "tokenizer.json"


class Prompts:
    """One BOS, the question, and the lone space that training put before every action (29871 in Llama 2)."""

    def __init__(self, tokenizer: Tokenizer, where: str = TOKENIZER) -> None:
        self.tokenizer = tokenizer
        self.stop, self._bos, self._space = (self._id(token, where) for token in (STOP, BOS, SPACE))
        self.ids = cache(self._ids)

    @classmethod
    def load(cls, folder: Path, plugin: str) -> Prompts:
        """Raises `ModelError` without a readable `tokenizer.json`."""
        from tokenizers import Tokenizer

        file = folder / TOKENIZER
        try:
            tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except Exception as err:  # its own reader raises plain exceptions
            raise ModelError(f"model.path ({plugin}): cannot read the tokenizer {file}: {err}") from err
        return cls(tokenizer, f"model.path ({plugin}): {file}")

    def _ids(self, instruction: str) -> tuple[int, ...]:
        text = f"{BEFORE}{instruction.lower()}{BEHIND}"
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return (self._bos, *ids) if ids[-1] == self._space else (self._bos, *ids, self._space)

    def _id(self, token: str, where: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise ModelError(f"{where} has no token {token!r}; is it Llama's?")
        return found
