"""Who receives weights, and on which machine each sits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rlinf_core.api.engine import Host
from rlinf_core.comm.transport import Standpoint, Transport, choose
from rlinf_core.comm.weights import SharedBucket
from rlinf_core.worker import WorkerGroup

Member = tuple[Host, str]  # a receiver's process, and its name there


@dataclass(eq=False)
class Party:
    """Receivers of one machine. On the actor's they read what it shows; on another one the first is sent the
    weights, and shows them to the rest."""

    members: list[Member] = field(default_factory=list)
    first: Member | None = None  # who was sent them
    reach: str = ""  # an address of the machine that others know
    _whole: Sequence[SharedBucket] = ()
    _latest: Sequence[SharedBucket] = ()

    def note(self, shown: Sequence[SharedBucket], *, whole: bool) -> None:
        """Where the version lies that they have now; `whole`: it brought all weights."""
        self._whole = shown if whole else self._whole
        self._latest = shown

    def forget(self) -> None:
        """Nothing lies in this machine's memory."""
        self._whole = self._latest = ()

    def lying(self) -> list[SharedBucket]:
        """All weights of the version that they have, for whoever has none."""
        names = {place.name for bucket in self._latest for _, place in bucket.places}
        if self._latest is self._whole:
            return list(self._whole)
        earlier = [_without(bucket, names) for bucket in self._whole]
        found = [*(bucket for bucket in earlier if bucket.places), *self._latest]
        version = found[-1].version if found else -1
        return [replace(bucket, version=version, last=bucket is found[-1]) for bucket in found]


class Parties:
    """All receivers of an actor."""

    def __init__(self, actor: WorkerGroup, receivers: WorkerGroup) -> None:
        self.local: dict[int, Member] = {}  # by the actor's rank in the same process
        self.near = Party()
        self.far: dict[str, Party] = {}  # by machine
        self.on_device = {Transport.CUDA_IPC: Party(), Transport.GROUP: Party()}
        self.group_is_near = True  # those of the process group sit on the actor's machine
        self._by_host = False
        self.dtype = ""  # of floats in other processes
        self._actor = actor
        self._receivers = receivers
        self._known: list[Member] = []
        self._sender: Standpoint | None = None

    def admit(self, again: Sequence[int] = ()) -> list[Member] | None:
        """Look who is there. Returns those who were not, and the ranks that were started `again`; None where
        nobody came or went."""
        members = list(self._receivers.members)
        renewed = [members[rank] for rank in again]
        known = [each for each in self._known if each in members and each not in renewed]
        new = [each for each in members if each not in known]
        if len(known) == len(self._known) and not new:
            return None
        self._known = known + new
        beside = {id(host): rank for rank, (host, _) in reversed(list(enumerate(self._actor.members)))}
        self.local = {beside[id(each[0])]: each for each in members if id(each[0]) in beside}
        for party in (self.near, *self.far.values(), *self.on_device.values()):
            party.members = [each for each in party.members if each in known]
            party.first = party.first if party.first in party.members else None
        self._seat([each for each in new if each not in self.local.values()])
        self.far = {machine: party for machine, party in self.far.items() if party.members}
        return new

    def transports(self) -> list[Transport]:
        """By which receivers in other processes are reached."""
        found = [way for way, party in self.on_device.items() if party.members]
        found += [Transport.SHARED_MEMORY] if self.near.members else []
        return [*found, Transport.SOCKET] if self.far else found

    def leave_devices(self) -> bool:
        """Reach all by way of host memory from now on, none of whom has weights then; False where nothing is
        changed by that."""
        self._by_host = True
        if not any(party.members for party in self.on_device.values()):
            return False
        for party in self.on_device.values():
            party.members = []
        self.near, self.far, self._known = Party(), {}, []
        self.admit()
        return True

    def _seat(self, new: list[Member]) -> None:
        if not new:
            return
        if self._sender is None:
            self._sender = self._actor.call_rank(0, "standpoint").result()
        places = WorkerGroup(self._receivers.name, new).call("standpoint").wait()
        for member, (standpoint, self.dtype) in zip(new, places, strict=True):
            self._party(standpoint).members.append(member)

    def _party(self, receiver: Standpoint) -> Party:
        """Where one with this standpoint belongs."""
        sender = self._sender or receiver
        near = sender.machine == receiver.machine
        heals = self._receivers.healer is not None  # one may be given weights while the actor trains
        on_device = not (self._by_host or heals) and (near or bool(sender.reach))
        way = choose(sender, receiver, on_device=on_device)
        if way in self.on_device:
            self.group_is_near = self.group_is_near and (near or way is not Transport.GROUP)
            return self.on_device[way]
        if way is Transport.SOCKET:
            party = self.far.setdefault(receiver.machine, Party())
            party.reach = receiver.reach
            return party
        return self.near


def _without(bucket: SharedBucket, names: set[str]) -> SharedBucket:
    return replace(bucket, places=tuple(each for each in bucket.places if each[1].name not in names))
