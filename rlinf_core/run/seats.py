"""Where groups sit, and the processes there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from rlinf_core.cluster.devices import free_port

if TYPE_CHECKING:
    from rlinf_core.api import Engine, Host, HostSpec

TRAINED = ("actor", "critic")  # groups with a state that checkpoints keep


@dataclass(frozen=True)
class Seat:
    """What a group is built from; with another seat it is built anew, or changes its ranks."""

    devices: tuple[int, ...]  # () = on a host of its own
    cycle: tuple[tuple[int, ...], ...] = ()  # devices of all that it talks with at every action
    groups: int = 1  # of environments that take turns


class DeviceHosts(Sequence["Host"]):
    """One process a device, started when it is needed first."""

    def __init__(self, engine: Engine, specs: Sequence[HostSpec]) -> None:
        self._engine = engine
        self._specs = list(specs)
        self._started: dict[int, Host] = {}

    def take(self, hosts: Mapping[int, Host]) -> None:
        """Those that were started already, by device."""
        self._started |= hosts

    def start(self, devices: Iterable[int]) -> None:
        """Those of these devices that are not there."""
        wanted = [device for device in sorted(devices) if device not in self._started]
        if wanted:
            started = self._engine.start([self._specs[device] for device in wanted])
            self._started |= dict(zip(wanted, started, strict=True))

    def end(self, devices: Iterable[int]) -> None:
        """Those of all other devices: nobody works there."""
        kept = set(devices)
        leaving = {device: host for device, host in self._started.items() if device not in kept}
        if leaving and self._engine.end(list(leaving.values())):
            for device in leaving:
                del self._started[device]

    def __len__(self) -> int:
        return len(self._specs)

    @overload
    def __getitem__(self, place: int) -> Host: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Host]: ...
    def __getitem__(self, place: int | slice) -> Host | Sequence[Host]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        self.start([number])
        return self._started[number]


@dataclass(frozen=True)
class Hosts:
    """The processes of a run: one a device, and those without a device by name."""

    devices: Sequence[Host]
    others: Mapping[str, Host]

    def start(self, devices: Iterable[int]) -> None:
        """The processes of these devices, where they are not there yet."""
        if isinstance(self.devices, DeviceHosts):
            self.devices.start(devices)

    def keep(self, devices: Iterable[int]) -> None:
        """End the processes of all other devices, where the engine can."""
        if isinstance(self.devices, DeviceHosts):
            self.devices.end(devices)


def meeting_point(first: Host) -> str:
    """Where the ranks of a group meet, of which this one's is the first."""
    return first.meeting_point() or f"127.0.0.1:{free_port()}"
