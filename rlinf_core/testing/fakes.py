"""Small real models that conformance checks and tests run on: one writes eight tokens, one acts on a state.

Axes: B rows, L positions, T response tokens, V vocabulary, H hidden, R rows of a decoder, N environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.api import Decoder, Model, PolicyOutputs, TextProcessor, Want
from rlinf_core.rl.logprobs import apply_sampling_transform, entropy, gather_logprobs
from rlinf_core.types import Experience, Prompt, Sample, Sampling

if TYPE_CHECKING:
    from rlinf_core.types import IntArray, Message

PAD, BOS, EOS = 0, 1, 2
LETTERS = "abcde"
VOCABULARY = 3 + len(LETTERS)
CONTEXT = 64
EXPORTED = "weights.pt"  # in the folder given to `export`


class LetterProcessor(TextProcessor):
    """One token a letter of `abcde`; other characters become `a`."""

    eos_ids = frozenset({EOS})
    pad_id = PAD
    context_length = CONTEXT

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """BOS, then the letters."""
        text = prompt if isinstance(prompt, str) else "".join(message["content"] for message in prompt)
        return [BOS, *self._letters(text)]

    def encode_response(self, text: str) -> list[int]:
        """The letters, then EOS."""
        return [*self._letters(text), EOS]

    def decode(self, token_ids: Sequence[int] | IntArray) -> str:
        """The letters alone."""
        return "".join(LETTERS[int(token) - 3] for token in token_ids if int(token) >= 3)

    def _letters(self, text: str) -> list[int]:
        return [3 + max(0, LETTERS.find(letter)) for letter in text]


class RecurrentModule(nn.Module):
    """`h = tanh(W h + E[x])`, logits `O h`."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.recurrence = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, VOCABULARY)

    def advance(self, hidden_BH: Tensor, tokens_B: Tensor) -> Tensor:
        """The next hidden state."""
        return torch.tanh(self.recurrence(hidden_BH) + self.embedding(tokens_B))

    def start(self, rows: int) -> Tensor:
        """The hidden state before the first token."""
        return self.embedding.weight.new_zeros(rows, self.embedding.embedding_dim)


class TinyTextModel(Model):
    """A recurrent language model over eight tokens."""

    def module(self, seed: int = 0) -> RecurrentModule:
        """Initialised from `seed` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return RecurrentModule()

    def processor(self) -> LetterProcessor:
        """One token a letter."""
        return LetterProcessor()

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """Prompt and response in one row, right-padded."""
        samples = [row for row in rows if isinstance(row, Sample)]
        steps = max([width or 0, *(len(sample.response_ids) for sample in samples)])
        longest = max((len(sample.prompt.token_ids) for sample in samples), default=0)
        ids_BL = np.zeros((len(samples), longest + steps), dtype=np.int64)
        response_BT = np.zeros((len(samples), steps), dtype=np.int64)
        for i, sample in enumerate(samples):
            joined = np.concatenate([sample.prompt.token_ids, sample.response_ids])
            ids_BL[i, : len(joined)] = joined
            response_BT[i, : len(sample.response_ids)] = sample.response_ids
        lengths = [len(sample.prompt.token_ids) for sample in samples]
        return {
            "ids_BL": torch.from_numpy(ids_BL),
            "response_BT": torch.from_numpy(response_BT),
            "prompt_lengths_B": torch.tensor(lengths, dtype=torch.int64),
        }

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """Reads the row token by token; the logits before a response token judge it."""
        network = cast("RecurrentModule", module)
        ids_BL, response_BT = inputs["ids_BL"], inputs["response_BT"]
        hidden_BH = network.start(len(ids_BL))
        states = []
        for position in range(ids_BL.shape[1]):
            hidden_BH = network.advance(hidden_BH, ids_BL[:, position])
            states.append(hidden_BH)
        hidden_BLH = torch.stack(states, dim=1)
        steps_T = torch.arange(response_BT.shape[1], device=ids_BL.device)
        before_BT = inputs["prompt_lengths_B"][:, None] - 1 + steps_T
        hidden_BTH = hidden_BLH.gather(1, before_BT[..., None].expand(-1, -1, hidden_BLH.shape[-1]))
        logits_BTV = apply_sampling_transform(network.head(hidden_BTH), sampling or Sampling(), response_BT)
        return PolicyOutputs(
            logprobs_BT=gather_logprobs(logits_BTV, response_BT),
            entropy_BT=entropy(logits_BTV) if "entropy" in want else None,
        )

    def decoder(self, module: nn.Module, slots: int, max_length: int) -> RecurrentDecoder:
        """Keeps one hidden state a slot."""
        return RecurrentDecoder(cast("RecurrentModule", module), slots)

    def export_architecture(self, path: Path) -> None:
        """There is only one."""
        path.mkdir(parents=True, exist_ok=True)

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """One file of tensors."""
        path.mkdir(parents=True, exist_ok=True)
        torch.save(dict(state), path / EXPORTED)


class RecurrentDecoder(Decoder):
    """The hidden states of `slots` rows."""

    def __init__(self, module: RecurrentModule, slots: int) -> None:
        self._module = module
        self._hidden_RH: Tensor = module.start(slots)

    def refresh(self) -> None:
        """Nothing is copied from the module."""

    @torch.no_grad()
    def prefill(self, slots: Sequence[int], prompts: Sequence[IntArray]) -> Tensor:
        """Read prompts from the start."""
        for slot, prompt in zip(slots, prompts, strict=True):
            hidden_1H = self._module.start(1)
            for token in prompt:
                hidden_1H = self._module.advance(hidden_1H, torch.tensor([int(token)]))
            self._hidden_RH[slot] = hidden_1H[0]
        logits: Tensor = self._module.head(self._hidden_RH[list(slots)]).float()
        return logits

    @torch.no_grad()
    def step(self, slots: Sequence[int], tokens: Tensor) -> Tensor:
        """Append one token to each slot."""
        chosen = list(slots)
        self._hidden_RH[chosen] = self._module.advance(self._hidden_RH[chosen], tokens)
        logits: Tensor = self._module.head(self._hidden_RH[chosen]).float()
        return logits

    def release(self, slots: Sequence[int]) -> None:
        """A free slot needs no work: `prefill` overwrites it."""


def text_samples(
    lengths: Sequence[int] = (4, 1, 3, 5), prompts: Sequence[int] = (2, 4, 1, 3)
) -> list[Sample]:
    """Samples of random letters with these response and prompt lengths."""
    random = np.random.default_rng(3)
    return [
        sample_of(random.integers(3, VOCABULARY, prompt), random.integers(3, VOCABULARY, length), index)
        for index, (length, prompt) in enumerate(zip(lengths, prompts, strict=True))
    ]


def sample_of(prompt_ids: IntArray, response_ids: IntArray, index: int = 0) -> Sample:
    """A sample whose every response token is trained."""
    return Sample(
        group=index,
        replica=0,
        seed=index,
        mask=np.ones(len(response_ids), dtype=bool),
        logprobs=np.zeros(len(response_ids), dtype=np.float32),
        weight_version=0,
        prompt=Prompt(index=index, token_ids=prompt_ids, text=""),
        response_ids=response_ids,
    )
