"""Machines beside this one: network and process namespaces. One at the end of a link with a delay and a rate,
which is a program that passes packets between two tunnel devices; or some at a switch, to which this machine
sends at a rate. Needs root.

As a program: `slow_link.py NEAR FAR RATE DELAY` passes packets between two open tunnels.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

_TUNSETIFF = 0x400454CA
_TUN, _NO_HEADER = 0x0001, 0x1000
_PACKET = 9000  # bytes at most
_QUEUE = 2**20  # bytes that wait for the link; more are lost


def why_not() -> str:
    """Why there can be none here; "" = there can."""
    if os.geteuid() != 0:
        return "two nodes on one machine need root"
    name = f"rlt{secrets.token_hex(2)}"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except (OSError, subprocess.CalledProcessError):
        return "two nodes on one machine need network namespaces (`ip netns`, from iproute2) and tunnels"
    return ""


class Place:
    """A machine's network, which is reached from this one at `near`."""

    def __init__(self, name: str, near: str) -> None:
        self.name, self.near = name, near

    def command(self, *arguments: str) -> list[str]:
        """A command that runs there, where it sees no process of this machine."""
        apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        return ["ip", "netns", "exec", self.name, *apart, *arguments]

    def stop(self) -> None:
        """Leave nothing behind."""
        listed = ["ip", "netns", "pids", self.name]
        found = subprocess.run(listed, capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)


class Switch:
    """Several machines. This one sends so many bytes a second to all of them, and so does each of them."""

    def __init__(self, machines: int, rate: float) -> None:
        tag = secrets.token_hex(2)
        net = f"10.79.{int(tag[:2], 16)}"
        self._bridge, near = f"rlb{tag}", f"{net}.1"
        limit = ("root", "tbf", "rate", f"{round(8 * rate)}bit", "burst", "64kb", "latency", "50ms")
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{near}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        subprocess.run(["tc", "qdisc", "add", "dev", self._bridge, *limit], check=True)
        self.places: list[Place] = []
        self._ports: list[str] = []
        for number in range(machines):
            name, outer, inner = (f"rl{kind}{tag}{number}" for kind in "mou")
            _ip("netns", "add", name)
            self.places.append(Place(name, near))
            self._ports.append(outer)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", outer, "master", self._bridge, "up")
            _ip("link", "set", inner, "netns", name)
            _ip("-n", name, "addr", "add", f"{net}.{2 + number}/24", "dev", inner)
            for device in (inner, "lo"):
                _ip("-n", name, "link", "set", device, "up")
            slow = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", inner, *limit]
            subprocess.run(slow, check=True)

    def sent_bytes(self) -> int:
        """From this machine so far."""
        return _sent_by(self._bridge)

    def stop(self) -> None:
        """Leave nothing behind."""
        for place in self.places:
            place.stop()
        for device in self._ports:
            subprocess.run(["ip", "link", "delete", device], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", self._bridge], check=False, capture_output=True)


class SlowLink(Place):
    """`near` and `far` are the addresses of its ends."""

    def __init__(self, rate: float, delay_s: float) -> None:
        tag = secrets.token_hex(2)
        net = f"10.78.{int(tag[:2], 16)}"
        super().__init__(f"rls{tag}", f"{net}.1")
        self.far = f"{net}.2"
        self._devices = [f"rlt{tag}n", f"rlt{tag}f"]
        _ip("netns", "add", self.name)
        tunnels = [_tunnel(name) for name in self._devices]
        try:
            _ip("link", "set", self._devices[1], "netns", self.name)
            for address, device, where in (
                (self.near, self._devices[0], ()),
                (self.far, self._devices[1], ("-n", self.name)),
            ):
                _ip(*where, "addr", "add", f"{address}/24", "dev", device)
                _ip(*where, "link", "set", device, "mtu", str(_PACKET), "up")
            _ip("-n", self.name, "link", "set", "lo", "up")
            self._program = subprocess.Popen(
                [sys.executable, __file__, *map(str, tunnels), str(rate), str(delay_s)], pass_fds=tunnels
            )
        finally:
            for tunnel in tunnels:
                os.close(tunnel)

    def sent_bytes(self) -> int:
        """From the near end to the far one so far."""
        return _sent_by(self._devices[0])

    def stop(self) -> None:
        """Leave nothing behind."""
        self._program.kill()
        self._program.wait(10)
        super().stop()


@dataclass
class _Direction:
    source: int
    target: int
    rate: float
    delay_s: float
    free_at: float = 0.0  # when the link has sent what it has
    waiting: list[tuple[float, int, bytes]] = field(default_factory=list)
    passed: int = 0

    def take(self, now: float) -> None:
        packet = os.read(self.source, _PACKET + 100)
        if (self.free_at - now) * self.rate > _QUEUE:
            return
        self.free_at = max(now, self.free_at) + len(packet) / self.rate
        self.passed += 1
        heapq.heappush(self.waiting, (self.free_at + self.delay_s, self.passed, packet))

    def release(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            os.write(self.target, heapq.heappop(self.waiting)[2])


def pass_packets(near: int, far: int, rate: float, delay_s: float) -> None:
    """For ever. `rate`: bytes a second, each way."""
    ways = {near: _Direction(near, far, rate, delay_s), far: _Direction(far, near, rate, delay_s)}
    poller = select.poll()
    for number in ways:
        poller.register(number, select.POLLIN)
    while True:
        now = time.monotonic()
        due = [way.waiting[0][0] for way in ways.values() if way.waiting]
        wait = None if not due else max(0.0, min(due) - now) * 1000
        ready = poller.poll(wait)
        now = time.monotonic()
        for number, _ in ready:
            ways[number].take(now)
        for way in ways.values():
            way.release(now)


def _tunnel(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN | _NO_HEADER))
    return descriptor


def _sent_by(device: str) -> int:
    return int(Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    pass_packets(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
