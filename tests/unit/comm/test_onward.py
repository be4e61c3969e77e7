"""What passes from machine to machine, here between threads over the loopback interface."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rlinf_core.comm.network import new_token
from rlinf_core.comm.onward import Links
from rlinf_core.errors import ProducerDied


@pytest.fixture
def chain() -> Iterator[list[Links]]:
    """Three, each connected with the next."""
    links = [Links(name) for name in "abc"]
    for before, after in itertools.pairwise(links):
        before.dial(*after.listen("127.0.0.1"))
    yield links
    for each in links:
        each.close()


class Taking(threading.Thread):
    """Takes all that passes, or fails at one of them."""

    def __init__(self, links: Links, chunks: list[list[Any]], fails_at: int = -1) -> None:
        super().__init__(daemon=True)
        self.links, self.chunks, self.fails_at = links, chunks, fails_at
        self.got: list[Any] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        passing = self.links.passing(iter(self.chunks))
        try:
            for chunk in passing:
                if len(self.got) == self.fails_at:
                    raise MemoryError("no room")
                self.got += chunk
        except BaseException as error:  # the border of a thread: the test looks at it
            self.error = error
        finally:
            passing.close()


def test_everything_reaches_every_one_in_order_again_and_again(chain: list[Links]) -> None:
    for count in (3, 0, 8):
        sent = [[np.full(200_000, number)] for number in range(count)]
        takers = [Taking(links, [] if number else sent) for number, links in enumerate(chain)]
        for taker in takers:
            taker.join(60)
            assert taker.error is None
            assert [int(array[-1]) for array in taker.got] == list(range(count))


def test_one_that_fails_tells_the_next_and_not_the_one_before(chain: list[Links]) -> None:
    sent = [[np.full(100_000, number)] for number in range(6)]
    first, second, third = (
        Taking(chain[0], sent),
        Taking(chain[1], [], fails_at=2),
        Taking(chain[2], []),
    )
    for taker in (second, third):
        taker.join(60)
    assert isinstance(second.error, MemoryError)
    assert isinstance(third.error, ProducerDied)
    assert str(third.error).startswith("c: the machine before it has failed")
    chain[1].close()  # as when it has died
    first.join(60)
    assert not first.is_alive()


def test_a_stranger_is_turned_away_and_keeps_nobody_out() -> None:
    one, other = Links("a"), Links("b")
    place, token = other.listen("127.0.0.1")
    host, _, port = place.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(new_token().encode())
        one.dial(place, token)
        takers = [Taking(one, [[1], [2]]), Taking(other, [])]
        for taker in takers:
            taker.join(60)
            assert (taker.got, taker.error) == ([1, 2], None)
        assert stranger.recv(10) == b""
    one.close()
    other.close()
