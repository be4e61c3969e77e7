"""One update of all receivers, and of one that comes later, as the driver orders it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_core.comm.stream import Stream
from rlinf_core.comm.transport import Transport
from rlinf_core.comm.weights import SharedBucket
from rlinf_core.errors import WorkerDied, WorkerError
from rlinf_core.roles.filling import Filling
from rlinf_core.roles.parties import Member, Parties, Party
from rlinf_core.roles.relaying import Relaying
from rlinf_core.roles.weights import Published, Sent
from rlinf_core.worker import WorkerGroup

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weights:
    """One version as the actor has sent it, for receivers in other processes."""

    version: int
    whole: bool = False
    buckets: Mapping[Transport, Sequence[Sent]] = field(default_factory=dict)  # by way


class WeightSync:
    """Brings the receivers to the actor's version. Where both sit in one process nothing is copied
    on the way. On one machine receivers read the parameters where they are; weights that are taken now and
    given later are written into memory of their own. To another machine goes what has changed, once; one
    receiver there shows it to the others.

    Receivers that are added to the group, or take the place of others there, get all weights of the version
    that the rest has before anything else: at the next update, or by `join`.
    """

    def __init__(self, actor: WorkerGroup, receivers: WorkerGroup) -> None:
        self.actor = actor
        self.version = -1
        self.metrics: dict[str, float] = {}  # of the last update that went to other processes
        self._receivers = receivers
        self._parties = Parties(actor, receivers)
        self._relaying = Relaying()
        self._filling = Filling(actor)
        self._grouped: list[Member] = []  # receivers of the process group
        self._far_sent = False  # the last update went to other machines too
        self._live = True  # receivers do nothing while weights change
        self._shown = False  # they see the parameters themselves
        self._held: list[int] = []  # versions that receivers have, or will be given
        self._holding = threading.Lock()
        self._joining = threading.Lock()

    def __call__(self) -> None:
        """One complete update, where there is something new. The first brings all weights, later ones
        what is trained."""
        self.join()
        version = self.newest()
        if version == self.version:
            return
        try:
            self._update(whole=self.version < 0)
        except WorkerDied:
            raise
        except WorkerError as error:
            if self.version >= 0 or not self._parties.leave_devices():
                raise
            _log.warning("weights cannot pass from device to device, and go by host memory: %s", error)
            self._update(whole=True)
        self._shown = self._live
        self.version = version
        self._installed(version)

    def _update(self, *, whole: bool) -> None:
        local = {rank: name for rank, (_, name) in self._parties.local.items()}
        transports = self._transports()
        for transport in transports:
            mine = {} if transport is Transport.GROUP else local  # who broadcasts has no time for others
            sent = self._publish(mine, transport, whole=whole)
            self._deliver(transport, sent, whole=whole)
            self._note(sent)
            local = {} if mine else local
        if local or not transports:
            self._publish(local, None, whole=whole).collect()

    def join(self, ranks: Sequence[int] = ()) -> None:
        """Bring receivers that came since the last update to the version that the others have, and no other;
        callable from another thread than `take`. `ranks`: those that were started again under their old
        names, in processes that are known.

        On the actor's machine this needs nobody's turn: it can be done while others act. A receiver that is
        the first of another machine, or the second, waits until the actor, or the first, has time.
        """
        with self._joining:
            new = self._parties.admit(ranks)
            if new is not None and self.version >= 0:
                self._bring(new)

    def take(self) -> Weights:
        """The actor's weights as they are now, for receivers in other processes that still act with older
        ones. What is taken is given, in that order."""
        if self._live:
            self._live = False
            if self._parties.leave_devices():
                self.version = -1
        whole = self.version < 0
        if whole:
            self.join()
        version = self.newest()
        if version == self.version and not self._shown:
            return Weights(version)
        self._shown = False
        taken = {}
        for transport in self._transports():
            sent = self._publish({}, transport, whole=whole)
            taken[transport] = sent.collect()
            self._note(sent)
        self.version = version
        with self._holding:
            self._held.append(version)
        return Weights(version, whole, taken)

    def give(self, weights: Weights) -> None:
        """Install what was taken; callable from another thread than `take`."""
        self.join()
        for transport, buckets in weights.buckets.items():
            self._deliver(transport, _stream(buckets), whole=weights.whole)
        self._installed(weights.version)

    def newest(self) -> int:
        """The actor's version."""
        version: int = self.actor.call_rank(0, "version").result()
        return version

    def _transports(self) -> list[Transport]:
        """Of this update."""
        found = self._parties.transports()
        self._far_sent = Transport.SOCKET in found
        return found

    def _bring(self, new: Sequence[Member]) -> None:
        """All weights to these."""
        local = {rank: name for rank, (host, name) in self._parties.local.items() if (host, name) in new}
        if local:
            self._publish(local, None, whole=True).collect()
        for way, party in self._parties.on_device.items():
            late = [each for each in party.members if each in new]
            if late:
                self._receive(late, self._publish({}, way, whole=True, to=late)).collect()
        near = self._parties.near
        late = [each for each in near.members if each in new]
        if late:
            shown = near.lying()
            if not shown:
                shown = self._publish({}, Transport.SHARED_MEMORY, whole=True).collect()
                near.note(shown, whole=True)
            self._receive(late, _stream(shown)).collect()
        for party in self._parties.far.values():
            self._bring_far(party, [each for each in party.members if each in new])

    def _bring_far(self, party: Party, late: Sequence[Member]) -> None:
        if party.first is None:
            self._relay([party], self._again(), whole=True)
        elif late:
            shown = party.lying()
            if not shown:
                shown = WorkerGroup("first", [party.first]).stage("show", Stream.of([])).collect()
                party.note(shown, whole=True)
            self._receive(late, _stream(shown)).collect()

    def _again(self) -> Stream:
        """All that other machines have; where none has anything, all that there is."""
        if not self._far_sent:
            self._far_sent = True
            return self._publish({}, Transport.SOCKET, whole=True)
        rank_0 = WorkerGroup(self.actor.name, self.actor.members[:1])
        return rank_0.stage("publish_again", Stream.of([]))

    def _deliver(self, transport: Transport, sent: Stream, *, whole: bool) -> None:
        """A version to those who are reached in this way."""
        near = self._parties.near
        if transport in self._parties.on_device:
            self._receive(self._parties.on_device[transport].members, sent).collect()
        elif transport is Transport.SOCKET:
            self._relay(list(self._parties.far.values()), sent, whole=whole)
        elif near.members:
            shown: list[SharedBucket] = []
            self._receive(near.members, sent.map(_keep_in(shown))).collect()
            near.note(shown, whole=whole)

    def _relay(self, parties: Sequence[Party], sent: Stream, *, whole: bool) -> None:
        """To the first of each machine, and from there to the rest."""
        if not parties:
            return
        for party in parties:
            party.first = party.members[0]
        passed = self._relaying.send(parties, sent)
        calls = []
        for party in parties:
            shown = [each.bucket for each in passed if each.by == party.members[0][1]]
            if shown:
                party.note(shown, whole=whole)
                calls.append(self._receive(party.members[1:], _stream(shown)))
            elif len(party.members) == 1:
                party.forget()
        for call in calls:
            call.collect()

    def _receive(self, members: Iterable[Member], chunks: Stream) -> Stream:
        group = WorkerGroup("receivers", list(members))
        group.healer = self._receivers.healer
        return group.stage("receive", chunks, route="broadcast")

    def _note(self, sent: Stream) -> None:
        published: Published = sent.result[0]
        if published.changes is not None:
            self.metrics["sync/mb"] = published.changes.sent_bytes / 2**20
            if published.changes.share is not None:
                self.metrics["sync/changed_share"] = published.changes.share

    def _installed(self, version: int) -> None:
        """Receivers have this version now, and will not go back."""
        with self._holding:
            self._held = [version, *(each for each in self._held if each > version)]

    def _publish(
        self,
        local: Mapping[int, str],
        transport: Transport | None,
        *,
        whole: bool,
        to: Sequence[Member] | None = None,
    ) -> Stream:
        """The actor's weights, in this way; on devices `to` these receivers, or to all."""
        direct = self._parties.on_device.get(transport) if transport else None
        readers = list(to or (direct.members if direct else ()))
        if transport is Transport.GROUP:
            self._join_group(readers)
            return self.actor.stage(
                "broadcast",
                Stream.of([]),
                trainable_only=not whole,
                dtype=self._parties.dtype,
                checked=whole,
            )
        if transport is Transport.SHARED_MEMORY and not local:
            filled = self._filling.publish(
                trainable_only=not whole, in_use=sorted(self._held), dtype=self._parties.dtype
            )
            if filled is not None:
                return filled
        return self.actor.stage(
            "publish",
            Stream.of([]),
            local=local,
            remote=transport is not None,
            trainable_only=not whole,
            way=transport,
            in_use=sorted(self._held),
            live=self._live,
            dtype=self._parties.dtype,
            checked=whole and direct is not None,  # of devices no update goes unlooked at
            readers=[name for _, name in readers],
        )

    def _join_group(self, receivers: list[Member]) -> None:
        """Make a process group of the actor's rank 0 and these, unless it is there."""
        if receivers != self._grouped:
            size, near = len(receivers), self._parties.group_is_near
            place = self.actor.call_rank(0, "open_group", size, near=near).result()
            group = WorkerGroup("receivers", receivers)
            calls = [group.call_rank(rank, "join_group", *place, 1 + rank, 1 + size) for rank in range(size)]
            for call in calls:
                call.result()
            self._grouped = receivers


def _keep_in(kept: list[Any]) -> Callable[[list[Any]], list[Any]]:
    """A function for `Stream.map` that passes chunks on and keeps what is in them."""

    def keep(chunk: list[Any]) -> list[Any]:
        kept.extend(chunk)
        return chunk

    return keep


def _stream(buckets: Iterable[Sent]) -> Stream:
    return Stream.of([bucket] for bucket in buckets)
