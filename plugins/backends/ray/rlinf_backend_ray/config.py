"""Settings of the engine `ray`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_core.errors import ConfigError

_POSITIVE = ("buffer_mb", "connect_timeout_s", "start_timeout_s", "silence_s")
_NOT_NEGATIVE = ("timeout_s", "cpu_devices", "restarts")


@dataclass(frozen=True)
class RayConfig:
    """One process per rank on the machines of a Ray cluster."""

    address: str = ""  # `host:port` of a cluster; "" = that of RAY_ADDRESS, or else a Ray of the run's own
    cpu_devices: int = 0  # devices that a node without GPUs counts as; 0 = two, or none beside GPU nodes
    group_label: str = "ray.io/node-group"  # the label of nodes whose value is their node group
    runtime_env: Mapping[str, Any] = field(default_factory=dict)  # of every process, as Ray documents it
    restarts: int = 0  # how often a run that lost a process or a node goes on from its last checkpoint
    buffer_mb: int = 256  # chunks on their way into or out of one worker's stage; beyond it senders wait
    timeout_s: float = 3600.0  # longest silence of a process that a call is waiting for; 0 = no limit
    connect_timeout_s: float = 10.0  # longest wait for the cluster to answer
    start_timeout_s: float = 120.0  # longest wait for devices that others use, and for processes to start
    silence_s: float = 3.0  # a node whose network does not answer for so long is lost

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigError(f"engine ray: engine.{name} is {getattr(self, name):g}; give more than 0")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ConfigError(f"engine ray: engine.{name} is {getattr(self, name):g}; give 0 or more")
        if self.address.startswith("ray://"):
            raise ConfigError(
                f"engine ray: engine.address={self.address} is that of a Ray Client, which is not a node of "
                "the cluster; start the run on a node (`ray job submit -- rlinf train ...` does) and give "
                "host:port of the head node, or nothing"
            )
        host, _, port = self.address.rpartition(":")
        if self.address not in ("", "auto") and not (host and port.isdigit()):
            raise ConfigError(
                f"engine ray: engine.address={self.address!r} is no address; give host:port of the head "
                "node, as in 10.0.0.1:6379, or auto for the cluster that runs on this machine"
            )
