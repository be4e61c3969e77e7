"""Which prompts each step trains on: a shuffled, endless, resumable walk over a dataset."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.agents.setup import make_turns
from rlinf_core.config.schema import AgentConfig
from rlinf_core.errors import DataError, RlinfError
from rlinf_core.run.seeds import derive_seed
from rlinf_core.types import Prompt, Request, Row, Sample

if TYPE_CHECKING:
    from rlinf_core.agents.turns import Turns
    from rlinf_core.api import Dataset, TextProcessor
    from rlinf_core.types import BoolArray, IntArray, Message

SCAN = 10_000  # rows whose length is checked before the run starts
SCAN_IMAGES = 200  # of them, if they have images, which take longer to read


class PromptSource:
    """Tokenised prompts of one split.

    `position` counts rows drawn since the start of the run; it is all that a resumed run needs.
    """

    def __init__(
        self,
        dataset: Dataset,
        processor: TextProcessor,
        seed: int,
        max_new_tokens: int,
        max_prompt_tokens: int,
        turns: Turns | None = None,
    ) -> None:
        self.dataset = dataset
        self.processor = processor
        self.seed = seed
        self.room = processor.context_length - max_new_tokens
        self.max_prompt_tokens = max_prompt_tokens
        self.turns = turns or make_turns(processor, {}, AgentConfig())  # of demonstrations that have several
        self.position = 0
        self._epoch = -1
        self._order: Sequence[int] = ()

    def check(self) -> None:
        """Raise `DataError` if prompts (of the first 10,000) do not fit into the context."""
        context = self.processor.context_length
        if self.room < 1:
            raise DataError(
                f"sampling.max_new_tokens: {context - self.room} leaves no token for a prompt in the context "
                f"of {context}; choose less, such as {context // 2}"
            )
        scan = SCAN_IMAGES if self._row(0).images else SCAN
        lengths = [len(self._encode(self._row(i))) for i in range(min(scan, len(self.dataset)))]
        long = [length for length in lengths if length > self.room]
        if long and not self.max_prompt_tokens:
            raise self._too_long(len(long), len(lengths), max(long))
        if lengths and min(lengths) > self.limit:
            raise DataError(
                f"train.max_prompt_tokens={self.max_prompt_tokens} drops every prompt; "
                f"the shortest has {min(lengths)} tokens"
            )

    @property
    def limit(self) -> int:
        """Longest prompt used."""
        return min(self.room, self.max_prompt_tokens) if self.max_prompt_tokens else self.room

    def draw(self, count: int) -> list[Prompt]:
        """The next `count` prompts of the walk; every epoch is a new permutation."""
        drawn: list[Prompt] = []
        skipped = 0
        while len(drawn) < count:
            prompt = self.prompt(self._index(self.position))
            self.position += 1
            if len(prompt.token_ids) <= self.limit:
                drawn.append(prompt)
                continue
            skipped += 1
            if not self.max_prompt_tokens or skipped > 2 * len(self.dataset):
                raise self._too_long(skipped, skipped + len(drawn), len(prompt.token_ids))
        return drawn

    def first(self, count: int) -> list[Prompt]:
        """The first `count` prompts in dataset order, for evaluation. Long ones are dropped where
        `train.max_prompt_tokens` allows it; raises `DataError` where it does not, or where none is left."""
        kept: list[Prompt] = []
        long: list[int] = []
        for index in range(len(self.dataset)):
            prompt = self.prompt(index)
            if len(prompt.token_ids) <= self.limit:
                kept.append(prompt)
            else:
                long.append(len(prompt.token_ids))
            if len(kept) == count:
                break
        if long and not (kept and self.max_prompt_tokens):
            raise self._too_long(len(long), len(long) + len(kept), max(long))
        return kept

    def prompt(self, index: int) -> Prompt:
        """Row `index`, tokenised."""
        row = self._row(index)
        ids = np.asarray(self._encode(row), dtype=np.int64)
        return Prompt(
            index=index,
            token_ids=ids,
            text=_text(row),
            answer=row.answer,
            meta=row.meta,
            images=row.images,
        )

    def demonstrations(self, count: int) -> list[Sample]:
        """The next `count` rows with their demonstrations as samples to imitate."""
        return [self._demonstration(prompt) for prompt in self.draw(count)]

    def check_demonstrations(self) -> None:
        """Raise `DataError` if the first row has nothing to imitate."""
        self._demonstration(self.prompt(0))

    def _demonstration(self, prompt: Prompt) -> Sample:
        told = self._row(prompt.index).demonstration
        if told is None:
            raise DataError(
                f"row {prompt.index} of the dataset has no demonstration to imitate; name the column that "
                "holds one (data.demonstration_key), or set warm_start.steps=0 where it is set"
            )
        whole, spoken = self._imitated(told, prompt.index)
        room = self.processor.context_length - len(prompt.token_ids)
        ids = whole[:room]
        return Sample(
            group=prompt.index,
            replica=0,
            seed=0,
            mask=spoken[:room],
            logprobs=np.zeros(len(ids), dtype=np.float32),
            weight_version=-1,
            finish="stop" if len(ids) == len(whole) else "length",
            prompt=prompt,
            response_ids=ids,
            text=self.processor.decode(ids),
        )

    def _imitated(self, told: str | list[Message], index: int) -> tuple[IntArray, BoolArray]:
        """Ids `[T]` of a demonstration, and which of them are to be imitated."""
        try:
            return self.turns.demonstration(told)
        except DataError as err:
            raise DataError(f"row {index} of the dataset: {err}") from err

    def _index(self, position: int) -> int:
        epoch, offset = divmod(position, len(self.dataset))
        if epoch != self._epoch:
            seed = derive_seed(self.seed, "epoch", epoch)
            self._order = np.random.default_rng(seed).permutation(len(self.dataset)).tolist()
            self._epoch = epoch
        return int(self._order[offset])

    def _row(self, index: int) -> Row:
        """Raises `DataError` for whatever a dataset raises."""
        try:
            return self.dataset[index]
        except RlinfError:
            raise
        except Exception as err:  # a plugin's code
            frame = traceback.extract_tb(err.__traceback__)[-1]
            where = f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
            raise DataError(
                f"data: row {index} of {type(self.dataset).__name__} cannot be read: "
                f"{type(err).__name__}: {err} ({where})"
            ) from err

    def _encode(self, row: Row) -> list[int]:
        if row.images:
            return self.processor.encode_with_images(row.prompt, row.images)
        return self.processor.encode_prompt(row.prompt)

    def _too_long(self, long: int, seen: int, longest: int) -> DataError:
        return DataError(
            f"{long} of {seen} prompts are longer than the {self.room} tokens that the context of "
            f"{self.processor.context_length} leaves beside sampling.max_new_tokens (longest: {longest}); "
            f"shorten the responses, or set train.max_prompt_tokens={self.room} to drop these prompts"
        )


def requests(
    prompts: Sequence[Prompt], replicas: int, first_group: int, *seed: int | str, asked: int = 0
) -> Iterator[list[Request]]:
    """One chunk a prompt: its group of requests, each with a seed of its own. `asked` groups with the same
    `seed` came before."""
    for offset, prompt in enumerate(prompts, asked):
        yield [
            Request(
                prompt=prompt,
                group=first_group + offset,
                replica=replica,
                seed=derive_seed(*seed, offset, prompt.index, replica),
            )
            for replica in range(replicas)
        ]


def _text(row: Row) -> str:
    if isinstance(row.prompt, str):
        return row.prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in row.prompt)
