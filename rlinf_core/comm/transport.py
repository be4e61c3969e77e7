"""Where two ranks sit, and by which way large tensors pass between them."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = "/proc/self/ns/pid"


class Transport(Enum):
    """A way for tensors, from the nearest to the farthest."""

    REFERENCE = "reference"  # one process: the tensor itself
    SHARED_MEMORY = "shared memory"  # one machine: written once, read in place
    SOCKET = "socket"  # everything else: bytes, by way of the driver


@dataclass(frozen=True)
class Standpoint:
    """Where a rank sits. Equal `machine`s are processes that can open each other's memory."""

    machine: str
    process: int
    device: str = "cpu"  # that its tensors lie on
    reach: str = ""  # an address of the machine that others know; "" = none is known

    @classmethod
    def here(cls, device: str = "cpu", reach: str = "") -> Standpoint:
        """This process's."""
        return cls(_machine(), os.getpid(), device, reach)


def choose(sender: Standpoint, receiver: Standpoint) -> Transport:
    """The nearest way there is.

    | sender and receiver | way |
    |---|---|
    | in one process | the tensor itself |
    | on one machine, whatever their devices | shared memory |
    | on two machines | a socket |

    >>> one, other = Standpoint("a", 1), Standpoint("a", 2, "cuda:0")
    >>> choose(one, other)
    <Transport.SHARED_MEMORY: 'shared memory'>
    """
    if sender.machine != receiver.machine:
        return Transport.SOCKET
    if sender.process == receiver.process:
        return Transport.REFERENCE
    return Transport.SHARED_MEMORY if sys.platform == "linux" else Transport.SOCKET


def _machine() -> str:
    """The same for all processes of a user that see each other: containers have process ids of their own."""
    if sys.platform != "linux" or not _BOOT.exists():
        return socket.gethostname()
    return f"{_BOOT.read_text().strip()} {os.readlink(_PROCESSES)} {os.getuid()}"
