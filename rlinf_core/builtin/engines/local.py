"""The local engine: one process per host on this machine."""

from __future__ import annotations

import atexit
import os
import socket
from collections import deque
from collections.abc import Iterable, Sequence

from rlinf_core.api.engine import Engine, Host, HostSpec
from rlinf_core.api.spans import HostSpan
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.remote import ChannelHandle
from rlinf_core.errors import ConfigError
from rlinf_core.hosting import (
    AT_EXIT_S,
    ChildProcess,
    LinkedHost,
    LinkLimits,
    end_hosts,
    refuse_doubled_names,
)

END_S = 2.0  # that hosts may take to end while others go on


class LocalEngine(Engine):
    """Starts host processes and ends them, at the latest when the interpreter exits."""

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        self.restarts = config.restarts
        self._hosts: list[LinkedHost] = []
        self._left: deque[HostSpan] = deque()  # of hosts that have ended
        self._specs: dict[str, HostSpec] = {}
        self._owner = os.getpid()
        self._hub: ChannelHub | None = None

    def start(self, hosts: Iterable[HostSpec]) -> list[Host]:
        """Start all processes and wait until each is ready to work."""
        specs = list(hosts)
        self._check(specs)
        atexit.register(self.stop, AT_EXIT_S)
        started: list[LinkedHost] = []
        first = not self._hosts
        try:
            for spec in specs:
                started.append(LinkedHost(spec.name, *self._launch(spec), self._limits))
                self._specs[spec.name] = spec
                self._hosts.append(started[-1])
            for host in started:
                host.wait_ready()
        except BaseException:
            if first:
                self.stop()
            self.end(started)
            raise
        return list(started)

    def end(self, hosts: Sequence[Host]) -> bool:
        """End their processes; what they did is still told of."""
        leaving = [host for host in self._hosts if host in hosts]
        end_hosts(leaving, END_S)
        self._left.extend(span for host in leaving for span in host.drain_spans())
        self._hosts = [host for host in self._hosts if host not in leaving]
        return True

    def renew(self, host: Host) -> bool:
        """Start its process again."""
        if not isinstance(host, LinkedHost) or host not in self._hosts:
            return False
        host.end_process()
        host.renew(*self._launch(self._specs[host.name]))
        host.wait_ready()
        return True

    def channel(self, name: str) -> ChannelHandle:
        """A channel between workers of any hosts."""
        if self._hub is None:
            self._hub = ChannelHub()
        return self._hub.create(name, capacity_bytes=self.config.buffer_mb * 2**20)

    def drain_spans(self) -> list[HostSpan]:
        """What workers did since the last time it was asked, host by host."""
        left = [self._left.popleft() for _ in range(len(self._left))]
        return [*left, *(span for host in self._hosts for span in host.drain_spans())]

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ask every process to end, terminate those that have not after `timeout_s`, then kill."""
        atexit.unregister(self.stop)
        if os.getpid() != self._owner:  # a fork of the driver: the processes are not its own
            return
        hosts, self._hosts = self._hosts, []
        end_hosts(hosts, timeout_s)
        if self._hub is not None:
            self._hub.close()
            self._hub = None

    def _launch(self, spec: HostSpec) -> tuple[socket.socket, ChildProcess]:
        here, there = socket.socketpair()
        return here, ChildProcess(spec, there, self._limits.buffer_bytes)

    @property
    def _limits(self) -> LinkLimits:
        config = self.config
        return LinkLimits(
            config.buffer_mb * 2**20, config.timeout_s, config.start_timeout_s, config.heartbeat_s
        )

    def _check(self, specs: list[HostSpec]) -> None:
        refuse_doubled_names("local", [host.name for host in self._hosts] + [spec.name for spec in specs])
        if not hasattr(os, "sched_getaffinity"):
            return
        available = os.sched_getaffinity(0)
        for spec in specs:
            missing = sorted(set(spec.cores) - available)
            if missing:
                raise ConfigError(
                    f"engine local: host {spec.name} asks for cores {missing}; "
                    f"this process may use {sorted(available)}"
                )
