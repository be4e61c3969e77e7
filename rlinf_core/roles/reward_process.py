"""The scoring process: receives batches over a socket, sends back results, ends with its parent."""

from __future__ import annotations

import faulthandler
import os
import pickle
import queue
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from rlinf_core.errors import RewardError
from rlinf_core.roles.reward_scoring import LoadedReward

SELF_DESTRUCT_S = 5.0  # beyond the deadline; only reached when the parent died and cannot kill us

Message = tuple[str, Any]  # Any: the payload belongs to the message's name


def main() -> None:
    """Serve the connection whose file descriptor is the first argument."""
    connection = Connection(int(sys.argv[1]))
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    terms, retries, timeout_s = pickle.loads(inbox.get())  # noqa: S301 - between a run and its own scoring process
    try:
        rewards = [LoadedReward(term) for term in terms]
    except RewardError as err:
        _send(connection, ("failed", str(err)))
        return
    _send(connection, ("ready", None))
    with open(os.devnull, "w") as nowhere:
        while True:
            items = pickle.loads(inbox.get())  # noqa: S301 - between a run and its own scoring process
            # A watchdog that works even while the scorer holds the interpreter lock.
            faulthandler.dump_traceback_later(
                timeout_s * len(rewards) + SELF_DESTRUCT_S, exit=True, file=nowhere
            )
            try:
                for reward in rewards:
                    _send(connection, ("scored", reward.score(items, retries)))
            except RewardError as err:
                _send(connection, ("failed", str(err)))
            faulthandler.cancel_dump_traceback_later()


def _receive(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    while True:
        try:
            inbox.put(connection.recv_bytes())
        except (EOFError, OSError):  # the parent is gone; the main thread may hang in a scorer
            os._exit(0)


def _send(connection: Connection, message: Message) -> None:
    try:
        connection.send_bytes(pickle.dumps(message, protocol=5))
    except OSError:  # the parent is gone
        os._exit(0)


if __name__ == "__main__":
    main()
