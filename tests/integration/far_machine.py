"""Host processes of a machine beside this one, which report to the driver as those of a cluster do.

As a program: `far_machine.py TICKET NAME...` starts them there and ends with them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rlinf_core.api.engine import Host, HostSpec
from rlinf_core.hosting import ChildProcess, Door, LinkedHost, LinkLimits, Ticket
from rlinf_core.hosting.process import HostProcess

sys.path.insert(0, str(Path(__file__).parent))
from slow_link import Place

_START_S = 60.0
_SILENCE_S = 20.0
_LIMITS = LinkLimits()


class FarProcess(HostProcess):
    """All processes of a far machine, which end together."""

    def __init__(self, name: str, program: subprocess.Popen[bytes]) -> None:
        self.title = f"process {name} of a far machine"
        self._program = program

    def ended(self) -> bool:
        return self._program.poll() is not None

    def ask_to_end(self) -> None:
        self._program.terminate()

    def finish(self) -> str:
        self._program.kill()
        self._program.wait(10)
        return "was ended"

    def tail(self) -> str:
        return ""


class FarMachine:
    """Its hosts, ready to work."""

    def __init__(self, place: Place, names: Sequence[str]) -> None:
        self._door = Door(place.near, _SILENCE_S)
        ticket = json.dumps(asdict(self._door.ticket))
        self._program = subprocess.Popen(place.command(sys.executable, __file__, ticket, *names))
        self.hosts: list[Host] = []
        for name in names:
            sock = self._door.wait_for(name, _START_S)
            host = LinkedHost(name, sock, FarProcess(name, self._program), _LIMITS)
            host.wait_ready()
            self.hosts.append(host)

    def stop(self) -> None:
        """Leave nothing behind."""
        self._program.kill()
        self._program.wait(10)
        self._door.close()


def serve(ticket: Ticket, names: Sequence[str]) -> None:
    """Start processes and wait for their end."""
    children = []
    for name in names:
        sock = ticket.enter(name, _SILENCE_S)
        children.append(ChildProcess(HostSpec(name), sock, _LIMITS.buffer_bytes, silence_s=_SILENCE_S))
    while not all(child.ended() for child in children):
        time.sleep(0.1)


if __name__ == "__main__":
    serve(Ticket(**json.loads(sys.argv[1])), sys.argv[2:])
