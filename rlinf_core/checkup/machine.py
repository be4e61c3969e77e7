"""Cores, memory, GPUs, shared memory, the disk of the output folder, and limits of processes."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rlinf_core.checkup.finding import Finding
from rlinf_core.cluster.devices import has_cuda_driver, inventory

_GIB = 2**30
_MB = 10**6
_SHARED = Path("/dev/shm")  # noqa: S108 - shared memory, which has this name
_SHARED_LEAST = 1 * _GIB  # samples, weights and pictures travel there
_MEMORY_LEAST = 2 * _GIB  # processes of a tiny run
_DISK_LEAST = 5 * _GIB  # a few checkpoints of a small model
_WRITTEN = 64 * 2**20  # bytes by which the disk is measured
_SLOW = 50 * _MB  # bytes a second; a checkpoint of 1 GB takes longer than 20 s
_FILES_LEAST = 1024  # open at once: connections and shared memory of some dozens of processes
_PROCESSES_LEAST = 4096  # with their threads
_GPU_LINE = "https://pytorch.org/get-started/locally has the build of torch for your driver"


def machine(folder: Path) -> Iterator[Finding]:
    """What there is, and the room in `folder`."""
    found = inventory()
    yield Finding("machine", "system", "ok", platform.platform())
    yield Finding("machine", "cores", "ok", f"{len(found.cores)} that this process may use")
    yield _memory(found.memory_bytes)
    for index, gpu in enumerate(found.cuda_devices):
        yield Finding("machine", f"gpu {index}", "ok", f"{gpu.name}, {gpu.memory_bytes / _GIB:.0f} GiB")
    if not found.cuda_devices:
        yield _without_gpu()
    if _SHARED.is_dir():
        yield _space("shared memory", _SHARED, _SHARED_LEAST, "in a container: docker run --shm-size=8g")
    yield _space("disk", folder, _DISK_LEAST, "free some, or keep fewer checkpoints: checkpoint.keep=1")


def limits() -> Iterator[Finding]:
    """What one process may have, as `ulimit` says."""
    yield _limit("open files", resource.RLIMIT_NOFILE, _FILES_LEAST, "ulimit -n 65536")
    yield _limit("processes", resource.RLIMIT_NPROC, _PROCESSES_LEAST, "ulimit -u 65536")
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        advice = "ulimit -v unlimited: shared memory and GPUs reserve far more addresses than they use"
        yield Finding("limit", "address space", "low", f"{space / _GIB:.1f} GiB", advice)


def disk_speed(folder: Path) -> Finding:
    """Write some megabytes there, have them on the disk, and read them."""
    block = os.urandom(2**20)
    place = os.path.abspath(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rlinf-doctor-") as file:
            began = time.perf_counter()
            for _ in range(_WRITTEN // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            written = time.perf_counter()
            if hasattr(os, "posix_fadvise"):  # else it is read from memory
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            while file.read(len(block)):
                pass
            read = time.perf_counter()
    except OSError as err:
        what = f"cannot be written: {err.strerror}: {place}"
        return Finding(
            "machine", "disk speed", "broken", what, "name another folder: rlinf doctor --output DIR"
        )
    speeds = [_WRITTEN / max(end - start, 1e-9) for start, end in ((began, written), (written, read))]
    detail = f"{speeds[0] / _MB:.0f} MB/s written to the disk, {speeds[1] / _MB:.0f} MB/s read, in {place}"
    slow = speeds[0] < _SLOW
    advice = "checkpoints will wait for it: a disk of this machine by --output, or checkpoint.every=0"
    return Finding("machine", "disk speed", "low" if slow else "ok", detail, advice if slow else "")


def _memory(size: int) -> Finding:
    low = size < _MEMORY_LEAST
    advice = "fewer processes: ranks=1, reward_pool.workers=1, env_pool.processes=1" if low else ""
    return Finding("machine", "memory", "low" if low else "ok", f"{size / _GIB:.1f} GiB", advice)


def _without_gpu() -> Finding:
    if not has_cuda_driver():
        return Finding("machine", "gpu", "absent", "none that torch sees", "runs go to CPU cores")
    import torch

    built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    if torch.version.cuda is None:
        built = f"torch {torch.__version__} is built without CUDA"
    return Finding(
        "machine", "gpu", "broken", f"there is a driver, but torch sees no GPU; {built}", _GPU_LINE
    )


def _limit(name: str, which: int, least: int, advice: str) -> Finding:
    soft, hard = resource.getrlimit(which)
    detail = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    low = soft != resource.RLIM_INFINITY and soft < least
    if low and hard != resource.RLIM_INFINITY and hard < least:
        detail += f", at most {hard}"
        advice = f"ask whoever runs this machine for more ({advice})"
    return Finding("limit", name, "low" if low else "ok", detail, advice if low else "")


def _space(name: str, folder: Path, least: int, advice: str) -> Finding:
    usage = shutil.disk_usage(folder)
    low = usage.free < least
    detail = f"{usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.1f} in {os.path.abspath(folder)}"
    return Finding("machine", name, "low" if low else "ok", detail, advice if low else "")
