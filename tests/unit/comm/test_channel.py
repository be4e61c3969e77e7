"""Bounded channels and credit between threads."""

from __future__ import annotations

import threading
import time

import pytest

from rlinf_core.comm.channel import Channel
from rlinf_core.comm.credit import Credit, Receipts
from rlinf_core.errors import ConfigError


def test_items_come_in_order_and_then_the_end() -> None:
    channel: Channel[int] = Channel()
    for item in range(5):
        assert channel.put(item)
    channel.close()
    assert list(channel) == [0, 1, 2, 3, 4]
    assert list(channel) == []
    assert not channel.put(5)


def test_items_inside_come_before_the_error_of_a_close() -> None:
    channel: Channel[int] = Channel()
    channel.put(1)
    channel.close(KeyError("gone"))
    channel.close()
    assert channel.get() == 1
    with pytest.raises(KeyError, match="gone"):
        channel.get()


def test_abandoning_drops_the_items_but_not_a_good_end() -> None:
    channel: Channel[int] = Channel()
    channel.put(1)
    channel.abandon(KeyError("gone"))
    with pytest.raises(KeyError):
        channel.get()
    ended: Channel[int] = Channel()
    ended.close()
    ended.abandon(KeyError("late"))
    assert list(ended) == []


def test_put_waits_at_capacity_and_an_oversized_item_passes_alone() -> None:
    channel: Channel[str] = Channel(capacity=10)
    channel.put("huge", weight=100)
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (channel.put("next", 1), done.set()))
    waiting.start()
    assert not done.wait(0.05)
    assert channel.get() == "huge"
    assert done.wait(2)
    waiting.join()
    assert channel.get() == "next"


def test_closing_frees_whoever_waits_to_put() -> None:
    channel: Channel[int] = Channel(capacity=1)
    channel.put(1)
    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(channel.put(2)))
    waiting.start()
    time.sleep(0.02)
    channel.close()
    waiting.join(2)
    assert results == [False]
    assert list(channel) == [1]


def test_the_heaviest_of_those_that_wait_goes_first_and_of_equals_the_oldest() -> None:
    channel: Channel[str] = Channel(heaviest=True)
    for item, weight in (("a", 2.0), ("b", 5.0), ("c", 2.0), ("d", 5.0), ("e", 1.0)):
        channel.put(item, weight)
    assert [channel.get(), channel.get(), channel.get()] == ["b", "d", "a"]
    channel.put("f", 1.5)
    channel.close()
    assert list(channel) == ["c", "f", "e"]
    with pytest.raises(ConfigError, match="choose one"):
        Channel(heaviest=True, ordered=True)


def test_a_get_with_a_deadline_gives_up() -> None:
    with pytest.raises(TimeoutError):
        Channel().get(timeout_s=0.01)


def test_credit_blocks_only_once_the_receiver_takes() -> None:
    credit = Credit(100, bounded=False)
    assert credit.spend(1000)
    credit.start_bounding()
    passed = threading.Event()
    waiting = threading.Thread(target=lambda: (credit.spend(1), passed.set()))
    waiting.start()
    assert not passed.wait(0.05)
    credit.refund(900)
    assert not passed.wait(0.05)
    credit.refund(1)
    assert passed.wait(2)
    waiting.join()


def test_released_credit_never_blocks_again() -> None:
    credit = Credit(1, bounded=True)
    assert credit.spend(5)
    credit.release()
    assert not credit.spend(5)


def test_receipts_add_up_to_what_was_taken_in_few_reports() -> None:
    receipts = Receipts(800)
    reports = [receipts.take(30) for _ in range(10)]
    assert reports == [0, 0, 0, 120, 0, 0, 0, 120, 0, 0]
