"""Tokens of samples with their numbers, as people are shown them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_core.run.sample_log import ENDS, details, pieces
from rlinf_core.types import Prompt, Sample

ACCENT, SIGN, FACE = "é".encode(), "漢".encode(), "😀".encode()
BYTES = {1: b"ab", 2: b" c", 3: ACCENT[:1], 4: ACCENT[1:], 5: SIGN[:2], 6: SIGN[2:]}
BYTES |= {7 + i: FACE[i : i + 1] for i in range(4)}


def decode(ids: Sequence[int]) -> str:
    """Pieces of UTF-8; 0 ends a sequence and has no text."""
    return b"".join(BYTES.get(i, b"") for i in ids).decode(errors="replace")


def sample(group: int, ids: list[int], logprobs: list[float]) -> Sample:
    length = len(ids)
    return Sample(
        group=group,
        replica=0,
        seed=0,
        weight_version=0,
        logprobs=np.array(logprobs, dtype=np.float32),
        mask=np.ones(length, dtype=bool),
        prompt=Prompt(0, np.array([1]), "x"),
        response_ids=np.array(ids),
    )


def test_pieces_are_the_text_and_letters_of_several_tokens_come_with_their_last() -> None:
    ids = [1, 3, 4, 2, 5, 6, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    found = pieces(ids, decode)
    assert found[:6] == ["ab", "", "é", " c", "", "漢"]
    assert found[-1] == ENDS
    assert "".join(found[:-1]) == decode(ids)


def test_pieces_are_the_whole_wherever_letters_lie_in_a_long_response() -> None:
    face, accent = [7, 8, 9, 10], [3, 4]
    for before in range(20):
        ids = [*[1] * before, *face * 6, *accent * 5, *face, 2, *face[:3]]
        found = pieces(ids, decode)
        assert len(found) == len(ids)
        assert "".join(found) == decode(ids)
        assert found[before : before + 4] == ["", "", "", "😀"]


def test_numbers_stand_beside_their_tokens_and_long_rows_are_left_out() -> None:
    rows = [sample(0, [1, 0], [-0.123456, -1.0]), sample(1, [1] * 5, [-0.5] * 5), sample(2, [2], [-2.0])]
    found = details(rows, decode, {(0, 0): {"advantages": [0.5, 0.25]}, (2, 0): {"advantages": []}}, most=4)
    assert found[0] == {"tokens": ["ab", ENDS], "logprobs": [-0.1235, -1.0], "advantages": [0.5, 0.25]}
    assert found[1] == {}
    assert found[2] == {"tokens": [" c"], "logprobs": [-2.0]}


def test_tokens_of_tools_are_told_apart() -> None:
    row = sample(0, [1, 2, 1, 0], [-1.0, 0.0, 0.0, -2.0])
    row.mask = np.array([True, False, False, True])
    assert details([row], decode, {})[0]["heard"] == [1, 2]
