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
    CUDA_IPC = "CUDA IPC"  # one GPU: the tensor itself, in another process
    GROUP = "process group"  # two accelerators: a broadcast by NCCL
    SHARED_MEMORY = "shared memory"  # one machine: written once, read in place
    SOCKET = "socket"  # everything else: bytes, by way of the driver


@dataclass(frozen=True)
class Standpoint:
    """Where a rank sits. Equal `machine`s are processes that can open each other's memory."""

    machine: str
    process: int
    device: str = "cpu"  # that its tensors lie on
    reach: str = ""  # an address of the machine that others know; "" = none is known
    accelerator: str = ""  # that its tensors lie on, by kind and number of the maker: "cuda GPU-1f..."

    @classmethod
    def here(cls, device: str = "cpu", reach: str = "") -> Standpoint:
        """This process's."""
        return cls(_machine(), os.getpid(), device, reach, _accelerator(device))


def choose(sender: Standpoint, receiver: Standpoint, *, on_device: bool = True) -> Transport:
    """The nearest way there is; not `on_device`: by way of host memory.

    | sender and receiver | way |
    |---|---|
    | in one process | the tensor itself |
    | on one GPU | CUDA IPC |
    | on two accelerators of one kind, of one machine or two | a process group |
    | on one machine, whatever their devices | shared memory |
    | on two machines | a socket |

    >>> one, other = Standpoint("a", 1), Standpoint("a", 2, "cuda:0")
    >>> choose(one, other)
    <Transport.SHARED_MEMORY: 'shared memory'>
    """
    near = sender.machine == receiver.machine
    if near and sender.process == receiver.process:
        return Transport.REFERENCE
    if on_device and sender.accelerator and receiver.accelerator:
        if near and sender.accelerator == receiver.accelerator:
            return Transport.CUDA_IPC
        if sender.accelerator.split()[0] == receiver.accelerator.split()[0]:
            return Transport.GROUP
    if not near:
        return Transport.SOCKET
    return Transport.SHARED_MEMORY if sys.platform == "linux" else Transport.SOCKET


def _accelerator(device: str) -> str:
    """ "" on the CPU, and where torch does not tell one from another."""
    if not device.startswith("cuda"):
        return ""
    import torch

    if not torch.cuda.is_available():
        return ""
    number = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return f"cuda {number}" if number else ""


def _machine() -> str:
    """The same for all processes of a user that see each other: containers have process ids of their own."""
    if sys.platform != "linux" or not _BOOT.exists():
        return socket.gethostname()
    return f"{_BOOT.read_text().strip()} {os.readlink(_PROCESSES)} {os.getuid()}"
