"""Host processes as an engine holds them, and those that are children of this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from io import BufferedReader
from pathlib import Path
from typing import cast

from rlinf_core.api.engine import HostSpec
from rlinf_core.worker.host import HostSettings
from rlinf_core.worker.memory import KILLED, amount, held_by, kills_for_memory

_TAIL_LINES = 20
_TAIL_BYTES = 16 * 1024


class HostProcess(ABC):
    """A process, wherever it runs. Any thread may call its methods."""

    title: str  # "process device0 (pid 4711)", as errors name it

    @abstractmethod
    def ended(self) -> bool:
        """Whether it is over; never blocks for long."""

    @abstractmethod
    def ask_to_end(self) -> None:
        """SIGTERM, which a busy host obeys at once."""

    @abstractmethod
    def finish(self) -> str:
        """Kill what is left of it and of what it started, and tell how it ended."""

    @abstractmethod
    def tail(self) -> str:
        """The last lines that it printed; may be asked for once it is finished."""

    def stopped(self) -> bool:
        """Whether a signal keeps it from running (SIGSTOP), as far as can be seen from here."""
        return False

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False if it has not come."""
        end = time.monotonic() + timeout_s
        while not self.ended():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True


class ChildProcess(HostProcess):
    """A child of this process. It is given a connected socket; its standard error is kept for reports."""

    def __init__(
        self, spec: HostSpec, sock: socket.socket, buffer_bytes: int, *, silence_s: float = 5.0
    ) -> None:
        self._log = _open_log(spec.log)
        self._log_start = self._log.stat().st_size if self._log is not None else 0
        self._kills = kills_for_memory()
        self._held = 0  # bytes, when it was looked at last
        settings = HostSettings(sock.fileno(), os.getpid(), spec.threads, spec.cores, buffer_bytes, silence_s)
        with sock:
            self._process = _launch(spec, settings, sock.fileno(), self._log)
        self.pid = self._process.pid
        self.title = f"process {spec.name} (pid {self.pid})"
        self._finishing = threading.Lock()
        self._tail = b""
        self._copier: threading.Thread | None = None
        if self._process.stderr is not None:
            stream = cast(BufferedReader, self._process.stderr)
            self._copier = threading.Thread(
                target=self._copy_stderr, args=(stream,), name="host-stderr", daemon=True
            )
            self._copier.start()

    def ended(self) -> bool:
        """Whether the process is over; leaves it unreaped, so that its session's id stays its own."""
        self._held = held_by(self.pid) or self._held
        if not hasattr(os, "waitid") or self._process.returncode is not None:
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # another thread has just reaped it
            return True

    def stopped(self) -> bool:
        """As its state says."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][:1] == "T"
        except OSError:  # it is over, or this system has no such files
            return False

    def ask_to_end(self) -> None:
        """SIGTERM, which a busy host obeys at once."""
        if not self.ended():
            self._process.terminate()

    def finish(self) -> str:
        """Kill what is left of the process and its children, and reap it."""
        with self._finishing:
            if self._process.returncode is None:
                try:
                    os.killpg(self.pid, signal.SIGKILL)
                except ProcessLookupError:  # it has no session yet
                    self._process.kill()
            status = self._process.wait()
        if self._copier is not None:
            self._copier.join(0.5)
        if status == -signal.SIGKILL and self._lacked_memory():
            return KILLED + (f" (it held {amount(self._held)} when looked at last)" if self._held else "")
        return describe_exit(status)

    def _lacked_memory(self) -> bool:
        """Whether the kernel has killed a process for it since this one began."""
        now = kills_for_memory()
        return now is not None and self._kills is not None and now > self._kills

    def tail(self) -> str:
        """The last lines of its standard error (of its log, where it has one)."""
        data = self._tail
        if self._log is not None:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, size - _TAIL_BYTES))
                data = file.read()
        return "\n".join(data.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:])

    def _copy_stderr(self, stream: BufferedReader) -> None:
        with stream:
            while data := stream.read1(_TAIL_BYTES):
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
                os.write(2, data)


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with exit code {status}"
    name = signal.Signals(-status).name
    hint = " (out of memory?)" if name == "SIGKILL" and kills_for_memory() is None else ""
    return f"was killed by {name}{hint}"


def _open_log(name: str) -> Path | None:
    if not name:
        return None
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def _launch(
    spec: HostSpec, settings: HostSettings, descriptor: int, log: Path | None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "rlinf_core.worker.host", settings.to_argument()]
    output = None if log is None else log.open("ab")
    try:
        return subprocess.Popen(
            command,
            env=_environment(spec),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if output is None else output,
            pass_fds=[descriptor],
            start_new_session=True,
        )
    finally:
        if output is not None:
            output.close()


def _environment(spec: HostSpec) -> dict[str, str]:
    paths = [os.path.abspath(path) for path in sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(spec.threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads starve the neighbours of a shared machine
        **spec.env,
    }
