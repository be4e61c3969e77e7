"""Streams on the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlinf_core.comm import Stream
from rlinf_core.errors import RlinfError


def test_collect_flattens_chunks_in_order() -> None:
    assert Stream.of([[1, 2], [], [3]]).collect() == [1, 2, 3]


def test_peek_does_not_take() -> None:
    stream = Stream.of(iter([[1], [2]]))
    assert (stream.peek(), stream.peek()) == ([1], [1])
    assert stream.collect() == [1, 2]
    assert Stream.of([]).peek() == []


def test_the_result_exists_only_after_the_end() -> None:
    stream = Stream([[1], [2]], result=lambda: ["report"])
    reader = iter(stream)
    next(reader)
    with pytest.raises(RlinfError, match="after its last chunk"):
        _ = stream.result
    assert list(reader) == [[2]]
    assert stream.result == ["report"]
    assert stream.exhausted


def test_a_mapped_stream_is_lazy_and_shares_the_result() -> None:
    seen: list[int] = []
    stream = Stream([[1], [2]], result=lambda: ["report"])
    mapped = stream.map(lambda chunk: seen.extend(chunk) or [10 * item for item in chunk])
    assert seen == []
    assert mapped.peek() == [10]
    assert seen == [1]
    assert mapped.collect() == [10, 20]
    assert (stream.result, mapped.result) == (["report"], ["report"])


@pytest.mark.parametrize("mapped", [False, True])
def test_stopping_early_cancels_the_producer_once(mapped: bool) -> None:
    cancelled: list[int] = []
    stream = Stream([[1], [2]], cancel=lambda: cancelled.append(1))
    read = stream.map(lambda chunk: chunk) if mapped else stream
    for _ in read:
        break
    del read
    assert cancelled == [1]
    stream.cancel()
    assert cancelled == [1]


def test_dropping_an_unread_stream_cancels_the_producer() -> None:
    cancelled: list[int] = []
    stream = Stream([[1]], cancel=lambda: cancelled.append(1))
    mapped = stream.map(lambda chunk: chunk)
    del stream
    assert cancelled == []
    del mapped
    assert cancelled == [1]


def test_an_error_of_the_producer_passes_through_and_closes_it() -> None:
    closed: list[int] = []

    def produce() -> Iterator[list[int]]:
        try:
            yield [1]
            raise KeyError("two")
        finally:
            closed.append(1)

    with pytest.raises(KeyError, match="two"):
        Stream.of(produce()).collect()
    assert closed == [1]
