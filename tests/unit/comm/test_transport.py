"""Which way tensors take between two ranks."""

from __future__ import annotations

import subprocess
import sys

from rlinf_core.comm.transport import Standpoint, Transport, choose


def test_the_nearest_way_is_chosen() -> None:
    here = Standpoint("one", 1)
    assert choose(here, Standpoint("one", 1)) is Transport.REFERENCE
    assert choose(here, Standpoint("one", 2)) is Transport.SHARED_MEMORY
    assert choose(here, Standpoint("one", 2, "cuda:0")) is Transport.SHARED_MEMORY
    assert choose(here, Standpoint("two", 1)) is Transport.SOCKET


def test_accelerators_of_one_kind_need_no_host_memory() -> None:
    here = Standpoint("one", 1, "cuda:0", accelerator="cuda A")
    same, near = (Standpoint("one", 2, "cuda:0", accelerator=f"cuda {number}") for number in "AB")
    far = Standpoint("two", 2, "cuda:0", accelerator="cuda A")
    assert choose(here, same) is Transport.CUDA_IPC
    assert choose(here, near) is choose(here, far) is Transport.GROUP
    assert choose(here, near, on_device=False) is Transport.SHARED_MEMORY
    assert choose(here, far, on_device=False) is Transport.SOCKET
    other = Standpoint("one", 3, "xpu:0", accelerator="xpu A")
    assert choose(here, other) is choose(here, Standpoint("one", 3)) is Transport.SHARED_MEMORY


def test_another_process_of_this_machine_is_known_as_such() -> None:
    line = "from rlinf_core.comm.transport import Standpoint; print(Standpoint.here().machine)"
    other = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == Standpoint.here().machine
