"""The walk over a dataset, and the requests made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlinf_core.api import Dataset, TextProcessor
from rlinf_core.errors import DataError, ModelError
from rlinf_core.run.prompts import PromptSource, requests
from rlinf_core.types import Row


class Letters(TextProcessor):
    """One id a character."""

    eos_ids = frozenset({0})
    pad_id = 0
    context_length = 10

    def encode_prompt(self, prompt: Any) -> list[int]:
        return [ord(c) for c in prompt]

    def encode_response(self, text: str) -> list[int]:
        return [ord(c) for c in text] + [0]

    def decode(self, token_ids: Sequence[int]) -> str:  # type: ignore[override]
        return "".join(chr(i) for i in token_ids if i)


class Texts(Dataset):
    """Given texts."""

    def __init__(self, *texts: str, demonstration: str | None = "d") -> None:
        super().__init__(None, "train", 0)
        self.texts = texts
        self.demonstration = demonstration

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Row:
        return Row(self.texts[index], answer=index, demonstration=self.demonstration)

    def fingerprint(self) -> str:
        return "x"


def source(*texts: str, most: int = 0, new: int = 4, **kwargs: Any) -> PromptSource:
    return PromptSource(
        Texts(*texts, **kwargs), Letters(), seed=3, max_new_tokens=new, max_prompt_tokens=most
    )


def test_every_epoch_holds_every_row_once_in_another_order() -> None:
    walk = source(*"abcdefgh")
    first = [prompt.index for prompt in walk.draw(8)]
    second = [prompt.index for prompt in walk.draw(8)]
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second


def test_a_walk_goes_on_from_its_position() -> None:
    whole, resumed = source(*"abcde"), source(*"abcde")
    whole.draw(7)
    resumed.position = 7
    assert [p.index for p in whole.draw(6)] == [p.index for p in resumed.draw(6)]


def test_a_prompt_that_does_not_fit_is_counted_and_the_setting_named() -> None:
    with pytest.raises(DataError, match=r"1 of 3 prompts are longer than the 6 tokens.*longest: 8.*=6"):
        source("ab", "abcdefgh", "c").check()


def test_long_prompts_are_dropped_when_asked() -> None:
    walk = source("ab", "abcdefgh", "c", most=5)
    walk.check()
    assert sorted(prompt.text for prompt in walk.draw(4)) == ["ab", "ab", "c", "c"]


def test_a_filter_that_drops_everything_is_an_error() -> None:
    with pytest.raises(DataError, match="drops every prompt; the shortest has 2 tokens"):
        source("ab", "abc", most=1).check()


def test_a_warm_start_without_demonstrations_names_the_row() -> None:
    with pytest.raises(DataError, match="row 0 of the dataset has no demonstration"):
        source("a", demonstration=None).demonstrations(1)


def test_demonstrations_end_with_an_end_token_and_train_every_token() -> None:
    row = source("a", demonstration="xy").demonstrations(1)[0]
    assert row.response_ids.tolist() == [ord("x"), ord("y"), 0]
    assert row.mask.tolist() == [True, True, True]


def test_seeds_differ_within_a_group_and_between_steps() -> None:
    prompts = source(*"ab").draw(2)
    seeds = [r.seed for step in (0, 1) for chunk in requests(prompts, 3, 0, 7, "step", step) for r in chunk]
    assert len(set(seeds)) == 12


def test_groups_are_chunks_with_consecutive_numbers() -> None:
    chunks = list(requests(source(*"ab").draw(2), 2, 40, 0))
    assert [[(r.group, r.replica) for r in chunk] for chunk in chunks] == [
        [(40, 0), (40, 1)],
        [(41, 0), (41, 1)],
    ]


class Pictures(Texts):
    """Every row has a picture."""

    def __getitem__(self, index: int) -> Row:
        return Row(self.texts[index], images=(np.full((2, 2, 3), index, np.uint8),))


class Seeing(Letters):
    """An image takes as many ids as it has pixels."""

    def encode_with_images(self, prompt: Any, images: Any) -> list[int]:
        return [1] * sum(image.shape[0] * image.shape[1] for image in images) + self.encode_prompt(prompt)


def test_a_prompt_keeps_its_images_and_has_places_for_them() -> None:
    walk = PromptSource(Pictures("a", "b"), Seeing(), seed=3, max_new_tokens=4, max_prompt_tokens=0)
    prompt = walk.prompt(1)
    assert prompt.token_ids.tolist() == [1, 1, 1, 1, ord("b")]
    assert prompt.images[0].tolist() == np.full((2, 2, 3), 1).tolist()
    walk.check()
    long = PromptSource(Pictures("abc"), Seeing(), seed=3, max_new_tokens=4, max_prompt_tokens=0)
    with pytest.raises(DataError, match="longer than the 6 tokens that the context of 10 leaves"):
        long.check()


def test_a_model_for_text_refuses_images() -> None:
    with pytest.raises(ModelError, match=r"the model reads text alone; .*data.image_key=''"):
        PromptSource(Pictures("a"), Letters(), seed=3, max_new_tokens=4, max_prompt_tokens=0).check()
