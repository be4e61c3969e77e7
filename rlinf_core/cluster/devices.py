"""What this machine has for workers: cores, memory and CUDA devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_MAX = 2**60  # larger numbers mean "no limit" in the first version of control groups
_DRIVER_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")
MOST_THREADS = 4  # of one CPU rank by default; more rarely pay


@dataclass(frozen=True)
class CudaDevice:
    """One GPU that torch sees."""

    name: str
    memory_bytes: int


def has_cuda_driver() -> bool:
    """Whether a driver of GPUs has left its devices here."""
    return any(Path(node).exists() for node in _DRIVER_NODES)


def find_cuda_devices() -> tuple[CudaDevice, ...]:
    """The GPUs that torch sees; torch is imported only where a driver for one is installed."""
    if not has_cuda_driver():
        return ()
    import torch

    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return tuple(CudaDevice(properties.name, properties.total_memory) for properties in found)


@dataclass(frozen=True)
class Inventory:
    """What this process may use. GPUs are looked for when `cuda_devices` is first asked for."""

    cores: tuple[int, ...]  # as many as affinity and quota allow
    memory_bytes: int
    find_cuda: Callable[[], tuple[CudaDevice, ...]] = find_cuda_devices

    @cached_property
    def cuda_devices(self) -> tuple[CudaDevice, ...]:
        """The GPUs."""
        return self.find_cuda()


def inventory(cgroup: Path = _CGROUP) -> Inventory:
    """This machine, as far as affinity and the control group let this process use it."""
    return Inventory(_cores(cgroup), _memory(cgroup))


def default_ranks(found: Inventory) -> tuple[int, int]:
    """How many ranks, and how many threads each: one rank a GPU, otherwise at most two."""
    cores = len(found.cores)
    ranks = len(found.cuda_devices) or (2 if cores >= 2 else 1)
    return ranks, max(1, min(MOST_THREADS, cores // ranks))


def _cores(cgroup: Path) -> tuple[int, ...]:
    usable = (
        sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    quota = _cpu_quota(cgroup)
    return tuple(usable if quota is None else usable[: max(1, int(quota))])


def _cpu_quota(cgroup: Path) -> float | None:
    """Cores that the control group allows, by its second or first version."""
    both = _words(cgroup / "cpu.max")
    if len(both) != 2:
        both = _words(cgroup / "cpu/cpu.cfs_quota_us") + _words(cgroup / "cpu/cpu.cfs_period_us")
    if len(both) != 2 or both[0] in ("max", "-1"):
        return None
    return int(both[0]) / int(both[1])


def _memory(cgroup: Path) -> int:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        words = _words(cgroup / name)
        if words and words[0] != "max" and int(words[0]) < _CGROUP_MAX:
            limits.append(int(words[0]))
    return min(limits)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # no such control group: no such limit
        return []


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
