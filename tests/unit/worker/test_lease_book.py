"""The order in which devices are granted."""

from __future__ import annotations

import random

import pytest

from rlinf_core.errors import RlinfError
from rlinf_core.worker.lease import LeaseBook


def test_devices_are_granted_in_the_order_asked_for() -> None:
    book: LeaseBook[str] = LeaseBook()
    assert book.request("a", [0])
    assert not book.request("b", [0])
    assert not book.request("c", [0])
    assert book.release("a") == ["b"]
    assert book.release("b") == ["c"]
    assert book.release("c") == []


def test_several_devices_come_all_at_once_and_are_not_overtaken_meanwhile() -> None:
    book: LeaseBook[str] = LeaseBook()
    book.request("a", [0])
    assert not book.request("wide", [0, 1])
    assert not book.request("late", [1])  # device 1 is free, but "wide" was first
    assert book.request("elsewhere", [2])
    assert book.holders() == {"a": frozenset({0}), "elsewhere": frozenset({2})}
    assert book.release("a") == ["wide"]
    assert book.release("wide") == ["late"]


def test_holders_that_want_each_others_devices_do_not_lock_each_other_out() -> None:
    book: LeaseBook[str] = LeaseBook()
    assert book.request("left", [0, 1])
    assert not book.request("right", [1, 0])
    assert book.release("left") == ["right"]


def test_a_holder_that_dies_gives_up_its_devices_or_its_place() -> None:
    book: LeaseBook[str] = LeaseBook()
    book.request("a", [0, 1])
    book.request("b", [0])
    book.request("c", [0])
    book.request("d", [1])
    assert book.drop("b") == []  # it only waited
    assert book.drop("a") == ["c", "d"]
    assert book.drop("never seen") == []


def test_a_waiting_holder_that_dies_lets_those_behind_it_through() -> None:
    book: LeaseBook[str] = LeaseBook()
    book.request("a", [0])
    book.request("wide", [0, 1])
    book.request("late", [1])
    assert book.drop("wide") == ["late"]


def test_asking_twice_or_releasing_what_is_not_held_is_refused() -> None:
    book: LeaseBook[str] = LeaseBook()
    book.request("a", [0])
    with pytest.raises(RlinfError, match="a holds devices already"):
        book.request("a", [1])
    book.request("b", [0])
    with pytest.raises(RlinfError, match="b waits for devices already"):
        book.request("b", [0])
    with pytest.raises(RlinfError, match="b holds no device; holders: a"):
        book.release("b")


def test_at_random_nobody_shares_a_device_nobody_starves_and_all_are_served_in_order() -> None:
    dice = random.Random(5)
    book: LeaseBook[int] = LeaseBook()
    wants: dict[int, frozenset[int]] = {}
    holding: list[int] = []
    granted_after: dict[int, list[int]] = {}
    for holder in range(2000):
        wants[holder] = frozenset(dice.sample(range(6), dice.randint(1, 4)))
        granted = [holder] if book.request(holder, wants[holder]) else []
        while True:
            for new in granted:
                granted_after[new] = [old for old in range(new) if old not in granted_after]
                holding.append(new)
            held = [device for one in holding for device in wants[one]]
            assert len(held) == len(set(held))
            if not holding or dice.random() < 0.4:
                break
            granted = book.release(holding.pop(dice.randrange(len(holding))))
    while holding:
        for new in book.release(holding.pop(0)):
            granted_after[new] = [old for old in range(new) if old not in granted_after]
            holding.append(new)
    assert set(granted_after) == set(wants)
    for holder, overtaken in granted_after.items():
        assert not any(wants[holder] & wants[old] for old in overtaken)
