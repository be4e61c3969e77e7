"""A Ray cluster of one node, on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

RAY = str(Path(sys.executable).with_name("ray"))
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_AUTH_MODE": "token"}


class OneNode:
    """Runs as long as one is within it; drivers need its `environment`."""

    def __init__(self, cpus: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.environment = {**os.environ, **QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._cpus = cpus
        self._folder = Path(tempfile.mkdtemp(prefix="rlr"))  # names of sockets have to be short

    def __enter__(self) -> OneNode:
        host, _, port = self.address.partition(":")
        where = [f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={self._folder}"]
        size = [f"--num-cpus={self._cpus}", "--object-store-memory=100000000"]
        quiet = ["--include-dashboard=false", "--disable-usage-stats"]
        command = [RAY, "start", "--head", *where, *size, *quiet]
        started = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=240, check=False
        )
        if started.returncode:
            self._end()
            raise AssertionError(started.stdout[-2000:] + started.stderr[-2000:])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """All processes that know its secret are its own, and so are their children, which may hide it."""
        token = self.environment["RAY_AUTH_TOKEN"].encode()
        known, parents = set(), {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(") ")[2].split()[1])
                if token in (path / "environ").read_bytes():
                    known.add(int(path.name))
        for pid in known | {pid for pid, parent in parents.items() if parent in known}:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)
