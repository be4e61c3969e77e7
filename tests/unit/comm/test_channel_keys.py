"""Keys, order and balance of channels within a process."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from rlinf_core.comm.channel import Channel
from rlinf_core.errors import ChannelClosed, ConfigError, RlinfError


def test_keys_are_queues_of_their_own_and_fill_up_alone() -> None:
    channel: Channel[int] = Channel(capacity=2)
    for number in range(2):
        channel.put(number, key="full")
    with pytest.raises(TimeoutError, match="key 'full' of channel 'channel' had no room"):
        channel.put(2, key="full", timeout_s=0.01)
    for number in range(50):
        channel.put(number, key="free")
        assert channel.get(key="free") == number
    assert [channel.get("full"), channel.get("full")] == [0, 1]
    channel.close()
    with pytest.raises(ChannelClosed, match="is closed and empty"):
        channel.get("full")


def test_an_item_goes_to_the_least_loaded_of_those_that_wait() -> None:
    channel: Channel[str] = Channel()
    got: dict[int, list[str]] = {0: [], 1: []}
    for rank in (0, 1):
        channel.put(f"first of {rank}", weight=[5, 3][rank])
        got[rank].append(channel.get(consumer=rank))

    def wait(rank: int) -> None:
        got[rank].append(channel.get(consumer=rank, timeout_s=5))

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)  # the more loaded one has waited longer
    channel.put("next", weight=1)
    threads[1].join(5)
    assert got == {0: ["first of 0"], 1: ["first of 1", "next"]}
    channel.put("last")
    threads[0].join(5)
    assert channel.loads == {0: 6, 1: 4}


def test_fixed_shares_are_balanced_whatever_the_speed_of_consumers() -> None:
    random_ = random.Random(0)
    weights = [random_.lognormvariate(3, 1) for _ in range(400)]
    shares: list[dict[int, list[int]]] = []
    for _ in range(2):
        channel: Channel[int] = Channel(consumers=4)
        taken: dict[int, list[int]] = {rank: [] for rank in range(4)}

        def consume(rank: int, channel: Channel[int] = channel, taken: Any = taken) -> None:
            while True:
                try:
                    taken[rank].append(channel.get(consumer=rank))
                except ChannelClosed:
                    return
                time.sleep(0.0005 * rank)

        threads = [threading.Thread(target=consume, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for number, weight in enumerate(weights):
            channel.put(number, weight)
        channel.close()
        for thread in threads:
            thread.join(5)
        loads = channel.loads.values()
        assert max(loads) / (sum(loads) / 4) < 1.05
        shares.append(taken)
    assert shares[0] == shares[1]
    with pytest.raises(ConfigError, match="to consumers 0 to 3, and None asked"):
        channel.get()


def test_items_come_in_the_order_of_their_numbers_and_a_full_channel_takes_the_missing_one() -> None:
    channel: Channel[int] = Channel(capacity=2, ordered=True)
    channel.put(1, order=1)
    channel.put(2, order=2)
    with pytest.raises(TimeoutError):
        channel.put(3, order=3, timeout_s=0.01)
    with pytest.raises(TimeoutError):
        channel.get(timeout_s=0.01)
    channel.put(0, order=0, timeout_s=1)
    assert [channel.get() for _ in range(3)] == [0, 1, 2]


def test_a_bounded_ordered_channel_passes_any_interleaving() -> None:
    for seed in range(20):
        channel: Channel[int] = Channel(capacity=1, ordered=True, producers=3)
        random_ = random.Random(seed)
        owners = [random_.randrange(3) for _ in range(40)]

        def produce(rank: int, channel: Channel[int] = channel, owners: list[int] = owners) -> None:
            for order, owner in enumerate(owners):
                if owner == rank:
                    channel.put(order, order=order)
            channel.finish()

        threads = [threading.Thread(target=produce, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        assert list(channel) == list(range(40))
        for thread in threads:
            thread.join(5)


def test_a_wrong_number_is_an_error_of_whoever_puts_it() -> None:
    channel: Channel[int] = Channel(ordered=True, name="chunks")
    channel.put(0, order=0)
    with pytest.raises(RlinfError, match="channel 'chunks': item number 0 of key None came twice"):
        channel.put(0, order=0)
    with pytest.raises(RlinfError, match="channel 'chunks' is ordered: put"):
        channel.put(0)
    channel.put(2, order=2)
    channel.close()
    assert channel.get() == 0
    with pytest.raises(RlinfError, match="closed before item number 1 came, and 1 later ones wait"):
        channel.get()


def test_a_channel_closes_when_all_its_producers_have_finished() -> None:
    channel: Channel[int] = Channel(producers=2)
    channel.put(1)
    channel.finish()
    assert channel.put(2)
    channel.finish()
    assert not channel.put(3)
    assert list(channel) == [1, 2]


def test_a_capacity_that_lets_nothing_through_is_refused() -> None:
    with pytest.raises(ConfigError, match="channel 'c': its capacity is not above 0"):
        Channel(capacity=0, name="c")
