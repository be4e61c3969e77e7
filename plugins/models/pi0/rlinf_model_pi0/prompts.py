"""Instructions as token ids. Axes: M decisions, L tokens, S state size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf_core.errors import ModelError

PAD, EOS, BOS, UNKNOWN = range(4)
VOCABULARY = 4 + 256  # of the presets: one token a byte


_STATE_EDGES = np.linspace(-1.0, 1.0, 257)[:-1]  # of the 256 numbers that a state is told in


class Prompts:
    """The pictures' placeholders, a BOS, the instruction and a line end, padded behind; or, in pi0.5, the
    task, the state in whole numbers and the question for actions."""

    def __init__(self, tokenizer: Any, image_id: int, room: int) -> None:  # Any: a transformers tokenizer
        self._tokenizer = tokenizer
        self._image_id = image_id
        self._room = room
        self._known: dict[str, list[int]] = {}

    def encode(
        self, texts: Sequence[str], image_tokens: int, states_MS: NDArray[np.float32] | None = None
    ) -> Tensor:
        """`[M, L]` int64; padding is -1. States, normalised, are part of the prompt if they are given. Raises
        `ModelError` for a text that is too long."""
        tokens_ML = torch.full((len(texts), image_tokens + self._room), -1)
        tokens_ML[:, :image_tokens] = self._image_id
        for row, (row_L, text) in enumerate(zip(tokens_ML, texts, strict=True)):
            ids = self._ids(text) if states_MS is None else self._asked(text, states_MS[row])
            row_L[image_tokens : image_tokens + len(ids)] = torch.tensor(ids)
        return tokens_ML

    def save(self, path: Path) -> None:
        """Write the tokenizer beside exported weights."""
        self._tokenizer.save_pretrained(path)

    def _ids(self, text: str) -> list[int]:
        if text not in self._known:
            ids = [self._tokenizer.bos_token_id, *self._plain(_cleaned(text)), *self._plain("\n")]
            self._known[text] = self._fitting(ids, text)
        return self._known[text]

    def _asked(self, text: str, state_S: NDArray[np.float32]) -> list[int]:
        numbers = np.digitize(state_S, _STATE_EDGES) - 1
        prompt = f"Task: {_cleaned(text)}, State: {' '.join(map(str, numbers))};\nAction: "
        return self._fitting([self._tokenizer.bos_token_id, *self._plain(prompt)], prompt)

    def _fitting(self, ids: list[int], text: str) -> list[int]:
        if len(ids) > self._room:
            raise ModelError(
                f"model.prompt_tokens (pi0): the prompt {text!r} takes {len(ids)} tokens, there is room for "
                f"{self._room}"
            )
        return ids

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def _cleaned(text: str) -> str:
    return " ".join(text.replace("_", " ").split())


def load_tokenizer(path: Path, key: str) -> Any:  # Any: a transformers tokenizer
    """The tokenizer in a directory. Raises `ModelError` naming the config key that the directory is from."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as err:
        raise ModelError(
            f"{key} (pi0): there is no tokenizer in {path}; set model.tokenizer to the directory of "
            "the checkpoint's tokenizer (that of PaliGemma)"
        ) from err


def byte_tokenizer() -> Any:  # Any: a transformers tokenizer
    """The presets' tokenizer: one token for each byte."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    names = ("<pad>", "<eos>", "<bos>", "<unk>")
    vocabulary = {name: i for i, name in enumerate(names)}
    vocabulary |= {f"<0x{byte:02X}>": len(names) + byte for byte in range(256)}
    model = models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.ByteFallback()
    pad, eos, bos, unknown = names
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=eos, bos_token=bos, unk_token=unknown
    )
