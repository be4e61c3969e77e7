"""What the program of a process in another environment begins and ends with."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from rlinf_core import errors
from rlinf_core.isolation.wire import Wire

_PR_SET_PDEATHSIG = 1


def run(arguments: list[str], serve: Callable[[Wire, int], None]) -> None:
    """Call `serve` with the wire and the descriptor of the shared memory, given `SOCKET MEMORY PARENT DIE` as
    `ChildProcess` gives them; then end this process, also when the parent has ended before."""
    end, memory, parent, with_parent = (int(argument) for argument in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent, which ends this process
    if with_parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    wire = Wire(socket.socket(fileno=end))
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        serve(wire, memory)
    sys.stderr.flush()
    os._exit(0)  # libraries that are torn down by the interpreter may hang or complain


def told(error: Exception, where: str) -> dict[str, Any]:  # Any: plain values
    """An error as plain values, for the parent to raise by `retold`."""
    cls = type(error)
    kind = cls.__name__ if cls.__module__ == "rlinf_core.errors" else ""
    return {
        "error": kind,
        "message": str(error) if kind else f"{cls.__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
        "where": where,
    }


def retold(said: dict[str, Any]) -> errors.RlinfError | None:  # Any: plain values
    """The error that a process raised for the user to read; None for any other."""
    kind: type[errors.RlinfError] | None = getattr(errors, said["error"] or "-", None)
    return None if kind is None else kind(said["message"])


def _end_with(parent: int) -> None:
    """End when the parent has, also while the main thread waits for a library."""
    while os.getppid() == parent:
        threading.Event().wait(1.0)
    os._exit(0)
