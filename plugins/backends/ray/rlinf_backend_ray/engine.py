"""The execution engine `ray`: each host is a process on the node that the plan asks for."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rlinf_backend_ray.config import RayConfig
from rlinf_backend_ray.installation import require_ray
from rlinf_core.api.engine import Engine, EngineNode, Host, HostSpec
from rlinf_core.api.spans import HostSpan
from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.remote import ChannelHandle
from rlinf_core.errors import ConfigError
from rlinf_core.hosting import AT_EXIT_S, Door, LinkLimits, end_hosts, refuse_doubled_names

if TYPE_CHECKING:  # these import Ray, which may be missing
    from rlinf_backend_ray.cluster import RayCluster
    from rlinf_backend_ray.launch import KeeperSet
    from rlinf_backend_ray.process import RayHost

_LOOK_S = 1.0  # how often it is looked for nodes that come back


class RayEngine(Engine):
    """Joins a cluster in `nodes` or `start`, and leaves it in `stop`."""

    config: RayConfig

    def __init__(self, config: RayConfig) -> None:
        super().__init__(config)
        require_ray()
        self.restarts = config.restarts
        self._owner = os.getpid()
        self._cluster: RayCluster | None = None
        self._nodes: Sequence[EngineNode] = ()
        self._asked = 0  # ranks, for which the nodes were found
        self._has_run = False
        self._keepers: KeeperSet | None = None
        self._hosts: list[RayHost] = []
        self._door: Door | None = None
        self._hub: ChannelHub | None = None

    def nodes(self, ranks: int) -> Sequence[EngineNode]:
        """The nodes of a cluster that runs; () for a Ray of our own, which is this machine."""
        from rlinf_backend_ray.cluster import is_running
        from rlinf_backend_ray.nodes import living_nodes, offered

        if self._cluster is None and not is_running(self.config):
            return ()
        patience = self.config.start_timeout_s if self._has_run else 0.0
        end = time.monotonic() + patience  # nodes that a run has lost may come back
        while not self._nodes or self._asked != ranks:
            living = living_nodes(self._joined().here, self.config.group_label)
            try:
                self._nodes, self._asked = offered(living, self.config, ranks), ranks
            except ConfigError:
                if time.monotonic() > end:
                    raise
                time.sleep(_LOOK_S)
        return self._nodes

    def start(self, hosts: Iterable[HostSpec]) -> list[Host]:
        """Reserve the devices, start all processes and wait until each is ready to work."""
        specs = list(hosts)
        refuse_doubled_names("ray", [host.name for host in self._hosts] + [spec.name for spec in specs])
        try:
            started = self._launch(specs, self._joined(len(specs)))
            for host in started:
                host.wait_ready()
            self._has_run = True
        except BaseException:
            self.stop()
            raise
        return list(started)

    def channel(self, name: str) -> ChannelHandle:
        """A channel between workers of any hosts, on any nodes."""
        if self._hub is None:
            self._hub = ChannelHub(self._joined().reach)
        return self._hub.create(name, capacity_bytes=self.config.buffer_mb * 2**20)

    def drain_spans(self) -> list[HostSpan]:
        """What workers did since the last time it was asked, host by host."""
        return [span for host in self._hosts for span in host.drain_spans()]

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ask every process to end, terminate those that have not after `timeout_s`, kill what is left,
        give the devices back and leave the cluster."""
        atexit.unregister(self.stop)
        if os.getpid() != self._owner:  # a fork of the driver: the processes are not its own
            return
        hosts, self._hosts = self._hosts, []
        end_hosts(hosts, timeout_s)
        self._leave()

    def _joined(self, processes: int = 1) -> RayCluster:
        from rlinf_backend_ray.cluster import RayCluster

        if self._cluster is None:
            self._cluster = RayCluster(self.config, max(processes, os.cpu_count() or 1))
            atexit.register(self.stop, AT_EXIT_S)
        return self._cluster

    def _launch(self, specs: Sequence[HostSpec], cluster: RayCluster) -> list[RayHost]:
        from rlinf_backend_ray.keeper import Order, versions
        from rlinf_backend_ray.launch import KeeperSet
        from rlinf_backend_ray.process import RayHost, RayProcess

        config, end = self.config, time.monotonic() + self.config.start_timeout_s
        limits = LinkLimits(config.buffer_mb * 2**20, config.timeout_s, config.start_timeout_s)
        if self._door is None:
            self._door = Door(cluster.reach, config.silence_s)
        if self._keepers is None:
            self._keepers = KeeperSet(cluster, self._nodes)
        ticket, folder = self._door.ticket, os.getcwd()
        orders = [
            Order(spec, ticket, folder, versions(), limits.buffer_bytes, config.silence_s) for spec in specs
        ]
        started = []
        for keeper, launched, spec in self._keepers.launch(orders, config.start_timeout_s):
            sock = self._door.wait_for(spec.name, max(1.0, end - time.monotonic()))
            process = RayProcess(spec.name, keeper, launched, sock, config.silence_s)
            host = RayHost(spec.name, sock, process, limits)
            host.device = launched.device
            self._hosts.append(host)
            started.append(host)
        return started

    def _leave(self) -> None:
        for thing in (self._hub, self._door, self._keepers, self._cluster):
            if thing is not None:
                thing.close()
        self._hub = self._door = self._keepers = self._cluster = None
        self._nodes = ()
