"""A process in another environment, seen from its parent: its messages, what it prints, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence

from rlinf_core.isolation.program import Program
from rlinf_core.isolation.wire import Message, Wire

KEPT_LINES = 20  # of what a process printed last
_READ_AT_ONCE = 1 << 16  # bytes


class ChildProcess:
    """Runs a module that serves the other end of a socket pair and shares an anonymous file of memory. What
    it prints goes to the standard error of this one, line by line."""

    def __init__(self, program: Program, module: str, memory: int, label: str) -> None:
        self.label = label
        ours, theirs = socket.socketpair()
        self._printed, out = os.pipe()
        os.set_blocking(self._printed, False)
        self._tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._line = b""
        try:
            self.popen = subprocess.Popen(
                _command(program, module, theirs.fileno(), memory),
                env=dict(program.variables),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[theirs.fileno(), memory],
            )
        except OSError:
            ours.close()
            os.close(self._printed)
            raise
        finally:
            theirs.close()
            os.close(out)
        self.wire = Wire(ours)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.popen.pid

    def descriptors(self) -> Sequence[int]:
        """Readable when it has said or printed something, or has ended."""
        return [self.wire.socket.fileno(), self._printed]

    def arrived(self) -> list[Message]:
        """The messages that are there, after passing on what was printed. Raises `EOFError` at its end."""
        self._pass_on()
        return self.wire.arrived()

    def tail(self) -> str:
        """What it printed last."""
        return "\n".join(self._tail)

    def kill(self, grace_s: float = 0.0) -> str:
        """End it, after so long a time to end by itself; returns how it ended."""
        if self.wire.socket.fileno() < 0:
            return _ending(self.popen.returncode)
        try:
            self.popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._pass_on()
        self._pass_on_line(self._line)
        os.close(self._printed)
        self.wire.socket.close()
        return _ending(self.popen.returncode)

    def _pass_on(self) -> None:
        while True:
            try:
                piece = os.read(self._printed, _READ_AT_ONCE)
            except BlockingIOError:
                return
            if not piece:
                return
            *lines, self._line = (self._line + piece).split(b"\n")
            for line in lines:
                self._pass_on_line(line)

    def _pass_on_line(self, line: bytes) -> None:
        if line:
            text = line.decode(errors="replace")
            self._tail.append(text)
            print(f"[{self.label}] {text}", file=sys.stderr, flush=True)


def quoted(printed: str) -> str:
    """What a process printed last, as the end of an error's message."""
    return f"; it had printed:\n{printed}" if printed else ""


def _command(program: Program, module: str, end: int, memory: int) -> list[str]:
    """The kernel would end it with the *thread* that started it, so it is asked to in the main one only."""
    with_parent = int(threading.current_thread() is threading.main_thread())
    numbers = [str(number) for number in (end, memory, os.getpid(), with_parent)]
    return [program.python, "-u", "-P", "-m", module, *numbers]


def _ending(status: int) -> str:
    return f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
