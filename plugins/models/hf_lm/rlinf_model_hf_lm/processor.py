"""Text to token ids with a transformers tokenizer: one BOS, chat template where asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.api import TextProcessor
from rlinf_core.errors import ModelError
from rlinf_model_hf_lm.config import HFLMConfig

if TYPE_CHECKING:
    from rlinf_core.types import IntArray, Message


class HFProcessor(TextProcessor):
    """Wraps `tokenizer`; `model_config` gives the context length and further EOS ids."""

    def __init__(self, tokenizer: Any, model_config: Any, config: HFLMConfig, eos_ids: set[int]) -> None:
        self.tokenizer = tokenizer  # Any, above too: transformers types
        self._config = config
        self.eos_ids = frozenset(eos_ids)
        if not self.eos_ids:
            raise ModelError(f"model.path: {config.path} names no end-of-sequence token")
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else min(self.eos_ids)
        self.context_length = int(model_config.get_text_config().max_position_embeddings)
        self._tools: list[Mapping[str, Any]] = []
        self._special = [token for token in tokenizer.all_special_tokens if token]
        self._close = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else min(self.eos_ids)
        first = tokenizer("a").input_ids[:1]
        self._bos = first[0] if first and first[0] == tokenizer.bos_token_id else None

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        mode = self._config.chat_template
        if isinstance(prompt, str):
            if mode != "always":
                return self._one_bos(self._encode(prompt))
            prompt = [{"role": "user", "content": prompt}]
        elif mode == "never":
            return self._one_bos(self._encode("\n".join(message["content"] for message in prompt)))
        return self._one_bos(self._encode(self._render(prompt)))

    def encode_response(self, text: str) -> list[int]:
        return [*self._encode(text), self._close]

    def encode_text(self, text: str) -> list[int]:
        return self._encode(self._plain(text))

    def encode_turn(self, messages: Sequence[Message]) -> list[int]:
        """What the template adds behind a turn of the assistant, from its end on."""
        if not self.tokenizer.chat_template:
            raise ModelError(
                f"agent.turns: the tokenizer of {self._config.path} has no chat template; set it to plain"
            )
        heard = [{**message, "content": self._plain(message["content"])} for message in messages]
        before: list[dict[str, Any]] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "!"},
        ]
        end = self._template(before, more=False)
        whole = self._template([*before, *heard], more=True)
        if not whole.startswith(end):
            raise ModelError(
                f"agent.turns: the chat template of {self._config.path} shows earlier turns in another way "
                "once later ones are there, so that tokens cannot be kept; set it to plain"
            )
        closing = self.tokenizer.convert_ids_to_tokens(self._close)
        last = end.rfind(closing)
        return self._encode(whole[last + len(closing) if last >= 0 else len(end) :])

    def describe_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._tools = list(tools)

    def decode(self, token_ids: Sequence[int] | IntArray) -> str:
        text: str = self.tokenizer.decode([int(i) for i in token_ids], skip_special_tokens=True)
        return text

    def save(self, path: Path) -> None:
        """Write the tokenizer's files."""
        self.tokenizer.save_pretrained(path)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def _one_bos(self, ids: list[int]) -> list[int]:
        if self._bos is None:
            return ids
        start = 0
        while start < len(ids) and ids[start] == self._bos:
            start += 1
        return [self._bos, *ids[start:]]

    def _render(self, messages: Sequence[Message]) -> str:
        if not self.tokenizer.chat_template:
            raise ModelError(
                f"model.path: the tokenizer of {self._config.path} has no chat template, but prompts are "
                "chat messages or model.chat_template is 'always'; set model.chat_template: never"
            )
        turns = [dict(message) for message in messages]
        if self._config.system_prompt and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self._config.system_prompt})
        return self._template(turns, more=True)

    def _template(self, turns: Sequence[Mapping[str, Any]], *, more: bool) -> str:
        """`more`: with the beginning of the assistant's next turn."""
        text: str = self.tokenizer.apply_chat_template(
            turns, tools=self._tools or None, tokenize=False, add_generation_prompt=more
        )
        return text

    def _plain(self, text: str) -> str:
        """Without special tokens, so that nothing that is quoted can open or close a turn."""
        while found := [token for token in self._special if token in text]:
            for token in found:
                text = text.replace(token, "")
        return text


def end_ids(tokenizer: Any, *configs: Any) -> set[int]:  # Any: transformers types
    """Every end-of-sequence id that the tokenizer or a (generation) configuration names."""
    found: set[int] = set()
    for owner in (tokenizer, *configs):
        ids = owner.eos_token_id
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return found
