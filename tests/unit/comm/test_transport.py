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


def test_another_process_of_this_machine_is_known_as_such() -> None:
    line = "from rlinf_core.comm.transport import Standpoint; print(Standpoint.here().machine)"
    other = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == Standpoint.here().machine
