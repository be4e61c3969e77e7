"""A Ray cluster of two nodes on one machine: network namespaces with a link between them, each with its own
processes of Ray and its own folder for them. Needs root."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RAY = str(Path(sys.executable).with_name("ray"))
HEAD, OTHER = "10.77.0.1", "10.77.0.2"
GROUPS = {HEAD: "train", OTHER: "act"}  # the labels of nodes
PORT = 6379
ADDRESS = f"{HEAD}:{PORT}"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_raylet_start_wait_time_s": "120",
}


def why_not() -> str:
    """Why there can be none here; "" = there can."""
    if os.geteuid() != 0:
        return "two nodes on one machine need root"
    name = f"rlt{secrets.token_hex(2)}"
    try:
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        subprocess.run(["ip", "netns", "delete", name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "two nodes on one machine need network namespaces (`ip netns`, from iproute2)"
    return ""


class TwoNodes:
    """The head node, on which runs are started, and another one that can be lost and come back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, **QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        tag = secrets.token_hex(2)
        self.names = {HEAD: f"rla{tag}", OTHER: f"rlb{tag}"}
        self._temporary = Path(tempfile.mkdtemp(prefix="rlr"))  # names of sockets have to be short

    def start(self) -> None:
        """Both nodes."""
        for address, name in self.names.items():
            _ip("netns", "add", name)
            (self.folder / address).mkdir(parents=True)
        links = [f"v{name}" for name in self.names.values()]
        _ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for (address, name), link in zip(self.names.items(), links, strict=True):
            _ip("link", "set", link, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", link, "up")
        self._ray(
            HEAD, "--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self._temporary}"
        )
        self.start_other()

    def start_other(self) -> None:
        """The node that is not the head, perhaps once more."""
        self._ray(OTHER, f"--address={ADDRESS}")

    def command(self, address: str, *arguments: str) -> list[str]:
        """A command that runs on a node: in its network, and with its own folder for Ray."""
        own = f'mount --bind {self.folder / address} {self._temporary} && exec "$@"'
        return [
            *("ip", "netns", "exec", self.names[address]),
            *("unshare", "--mount", "sh", "-c", own, "sh", *arguments),
        ]

    def processes(self, address: str) -> list[int]:
        """All that run on a node."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.names[address]], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    def lose_other(self) -> None:
        """As when its power fails: nobody there says goodbye, and nothing is answered any more."""
        _ip("-n", self.names[OTHER], "link", "set", f"v{self.names[OTHER]}", "down")
        self._kill(OTHER)

    def restore_other(self) -> None:
        """Its power is back."""
        _ip("-n", self.names[OTHER], "link", "set", f"v{self.names[OTHER]}", "up")
        self.start_other()

    def stop(self) -> None:
        """Leave nothing behind."""
        for address, name in self.names.items():
            self._kill(address)
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _ray(self, address: str, *options: str) -> None:
        line = ["start", f"--node-ip-address={address}", "--num-cpus=1", "--object-store-memory=100000000"]
        label = f"--labels=ray.io/node-group={GROUPS[address]}"
        command = self.command(address, RAY, *line, label, "--disable-usage-stats", *options)
        for _ in range(2):  # on a busy machine the first try may be too late for Ray
            started = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=240, check=False
            )
            if started.returncode == 0:
                return
            self._kill(address)
        raise AssertionError(started.stdout[-2000:] + started.stderr[-2000:])

    def _kill(self, address: str) -> None:
        for _ in range(50):
            pids = self.processes(address)
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not pids:
                return
            time.sleep(0.1)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
