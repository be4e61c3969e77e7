"""Memory of another process of this machine, read where it lies: one copy, by the system itself.

Linux lets a process read another one's memory where it might also trace it: `process_vm_readv(2)`. It may
not where they are of different users or containers, or the system says that only parents may
(`kernel.yama.ptrace_scope`); so one asks before.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SIZE = 16
UNREADABLE = "cannot be read in the memory of process"  # its end, most likely
_kept: list[Any] = []  # what others look for. Any: an array of bytes


class _Piece(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("size", ctypes.c_size_t))


@dataclass(frozen=True)
class Mark:
    """Bytes that lie in a process's memory, for others to find out whether they can read there."""

    process: int
    address: int
    value: bytes = field(repr=False)

    @classmethod
    def here(cls) -> Mark:
        """This process's."""
        if not _kept or _kept[0] != os.getpid():  # a fork has one of its own
            _kept[:] = [os.getpid(), ctypes.create_string_buffer(secrets.token_bytes(_SIZE), _SIZE)]
        return cls(os.getpid(), ctypes.addressof(_kept[1]), _kept[1].raw)

    def readable(self) -> bool:
        """Whether this process can read that one's memory; another process of that number does not count."""
        found = ctypes.create_string_buffer(_SIZE)
        try:
            _read(self.process, self.address, ctypes.addressof(found), _SIZE)
        except OSError:
            return False
        return found.raw == self.value


def read_into(target: Tensor, process: int, address: int) -> None:
    """Fill a contiguous tensor in host memory with what lies there. Raises `OSError`."""
    _read(process, address, target.data_ptr(), target.nbytes)


def _read(process: int, address: int, target: int, size: int) -> None:
    call = _system_call()
    if call is None:
        raise OSError("this system does not let processes read each other's memory")
    done = 0
    while done < size:  # the system reads no more than 2 GiB at once
        ours, theirs = _Piece(target + done, size - done), _Piece(address + done, size - done)
        one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
        got = call(process, ctypes.byref(ours), one, ctypes.byref(theirs), one, none)
        if got <= 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)}: {size - done} bytes {UNREADABLE} {process}")
        done += got


@cache
def _system_call() -> Any:  # Any: a function of the C library, or None
    call = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if call is not None:
        call.restype = ctypes.c_ssize_t
    return call
