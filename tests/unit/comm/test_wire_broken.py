"""Messages that are none, and messages whose rest does not come."""

from __future__ import annotations

import contextlib
import socket

import pytest

from rlinf_core.comm.wire import Wire, pack


def test_what_is_no_message_is_refused_before_anything_is_made_of_it() -> None:
    """Its first bytes would be a message of 2**62 bytes."""
    ours, theirs = socket.socketpair()
    wire = Wire(ours)
    theirs.sendall(b"\x00\x01\x00\x00" + b"\x40" * 60)
    with pytest.raises(ValueError, match="no message: it begins with 00 01 00 00 40 40 40 40"):
        wire.receive()
    wire.close()
    theirs.close()


def test_whoever_waits_for_the_rest_of_a_message_is_asked_whether_to_go_on() -> None:
    asked: list[int] = []

    def patience() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise ConnectionError("no more")

    ours, theirs = socket.socketpair()
    other = Wire(theirs)
    other.send(7, 1, pack("whole"))
    theirs.sendall(b"\x1c")
    wire = Wire(ours, patience)
    message = wire.receive()
    assert message is not None
    assert message.load() == "whole"
    assert wire.receive() is None
    assert len(asked) == 2
    wire.close()
    other.close()


def test_a_nudge_does_not_wait_for_one_who_does_not_read() -> None:
    ours, theirs = socket.socketpair()
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(4096), socket.MSG_DONTWAIT)
    wire = Wire(ours)
    wire.nudge(15)
    wire.close()
    theirs.close()
