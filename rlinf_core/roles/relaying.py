"""How a version reaches several machines: one receiver of each gets it, some from the one before."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_core.comm.stream import Stream
from rlinf_core.roles.parties import Member, Party
from rlinf_core.roles.weights import Shown
from rlinf_core.worker import WorkerGroup

CHAIN_FROM = 4  # machines; fewer are sent to one by one, which saves the way over the others


class Relaying:
    """Sends to few machines itself. Many form a chain: the driver sends to the first, and each passes on to
    the next what it gets, bucket by bucket, while it installs it."""

    def __init__(self) -> None:
        self._chain: list[Member] = []

    def send(self, parties: Sequence[Party], sent: Stream) -> list[Shown]:
        """To the first receiver of each; returns what those show to others of their machines."""
        relays = frozenset(party.members[0][1] for party in parties if len(party.members) > 1)
        ordered = sorted(parties, key=lambda party: bool(party.reach))  # the driver's machine has none
        firsts = [party.members[0] for party in ordered]
        if len(parties) < CHAIN_FROM or not all(party.reach for party in ordered[1:]):
            each = WorkerGroup("receivers", firsts).stage("receive", sent, route="broadcast", relays=relays)
            return each.collect()
        self._link(firsts)
        chain, self._chain = self._chain, []  # one that has failed is not used again
        rest = WorkerGroup("receivers", firsts[1:]).call("take_on", relays=relays)
        first = WorkerGroup("receivers", firsts[:1]).stage("receive", sent, relays=relays, linked=True)
        shown: list[Shown] = rest.guard(first).collect()
        shown += [each for found in rest.wait() for each in found]
        self._chain = chain
        return shown

    def _link(self, firsts: list[Member]) -> None:
        """Connect each with the next, where that is not done."""
        if firsts == self._chain:
            return
        self._chain = []
        WorkerGroup("receivers", firsts[:1]).call("unlink").wait()
        places = WorkerGroup("receivers", firsts[1:]).call("listen").wait()
        group = WorkerGroup("receivers", firsts[:-1])
        calls = [group.call_rank(rank, "dial", *place) for rank, place in enumerate(places)]
        for call in calls:
            call.result()
        self._chain = firsts
