"""A worker process of the channel tests: `channel_worker.py JOB HANDLES [ARGUMENTS]`, pickled."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import sys
import time
from typing import Any

import numpy as np

from rlinf_core.comm.remote import ChannelHandle


def echo(worker: str, source: ChannelHandle, sink: ChannelHandle) -> None:
    """Put back all that comes."""
    with source.connect(worker) as incoming, sink.connect(worker) as outgoing:
        for item in incoming:
            outgoing.put(item)
        outgoing.close()


def produce(worker: str, channel: ChannelHandle, first: int, count: int, size: int, key: Any) -> None:
    """Put arrays whose content is their number, and finish."""
    with channel.connect(worker) as outgoing:
        for number in range(first, first + count):
            if not outgoing.put(np.full(size, number), key=key):
                return
        outgoing.finish()


def consume(worker: str, channel: ChannelHandle, sink: ChannelHandle, pause_s: float) -> None:
    """Send on what every array says it is, after a while."""
    with channel.connect(worker) as incoming, sink.connect(worker) as outgoing:
        for array in incoming:
            time.sleep(pause_s)
            assert (array == array[0]).all()
            outgoing.put((worker, int(array[0])))
        outgoing.finish()


def hold(worker: str, channel: ChannelHandle, count: int, then: str) -> None:
    """Get so many items, then do nothing, end without goodbye, or die."""
    incoming = channel.connect(worker)
    kept = [incoming.get() for _ in range(count)]
    _end(then, kept)


def put_and(worker: str, channel: ChannelHandle, count: int, then: str) -> None:
    """Put so many items, then do nothing, end without goodbye, or die."""
    outgoing = channel.connect(worker)
    for number in range(count):
        outgoing.put(number)
    if then == "leave":
        outgoing.leave()
    _end(then, [])


def _end(then: str, kept: list[Any]) -> None:
    if then == "wait":
        time.sleep(60)
    elif then == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def argument(*values: Any) -> str:
    """Values as a command-line argument."""
    return base64.b64encode(pickle.dumps(values)).decode()


if __name__ == "__main__":
    globals()[sys.argv[1]](*pickle.loads(base64.b64decode(sys.argv[2])))
