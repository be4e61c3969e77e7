"""Want of memory: how it shows in a process, and what a process held when it came."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.cluster.devices import inventory

if TYPE_CHECKING:
    from rlinf_core.worker.worker import Worker

RAN_OUT = "ran out of memory"  # in what is said of a worker
KILLED = "was killed by the kernel for want of memory"  # of a process
_SAID = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")
_STATISTICS = Path("/proc/vmstat")


def is_exhausted(error: BaseException) -> bool:
    """Whether an exception says that there was not enough memory, of the machine or of a device."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _SAID)


def tells_of_exhaustion(text: str) -> bool:
    """Whether an error that is told in these words came of it."""
    return RAN_OUT in text or KILLED in text


def resident(workers: Mapping[str, Worker]) -> str:
    """What the workers of this process hold, and the process itself."""
    held = [f"{name} {amount(size)}" for name, worker in workers.items() if (size := _size(worker))]
    said = f"resident: {', '.join(held)}; " if held else ""
    total = inventory().memory_bytes
    return f"{said}the process holds {amount(held_by(os.getpid()))} of {amount(total)} of the machine{_gpu()}"


def held_by(pid: int) -> int:
    """Bytes of a process that are in memory; 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def kills_for_memory(statistics: Path = _STATISTICS) -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not tell."""
    try:
        for line in statistics.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        return None
    return None


def amount(size: float) -> str:
    """Bytes in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _size(worker: Worker) -> float:
    try:
        return worker.memory_bytes()
    except Exception:  # a border: one that cannot say what it holds must not hide what happened
        return 0.0


def _gpu() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    free, total = torch.cuda.mem_get_info()
    return f", and its GPU has {amount(free)} of {amount(total)} free"
