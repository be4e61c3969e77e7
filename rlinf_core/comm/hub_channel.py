"""One channel in the hub: who puts, who takes, and what becomes of it when one of them dies."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from rlinf_core.comm.exchange import Exchange
from rlinf_core.comm.frames import Frame, Say
from rlinf_core.comm.member import Member, MemberOffer, MemberRequest
from rlinf_core.comm.offer import Key
from rlinf_core.comm.payload import Payload
from rlinf_core.errors import ConsumerDied, ProducerDied, RlinfError

_EXTRA_BYTES = 64 * 1024  # of items sent ahead


@dataclass(frozen=True)
class ChannelSettings:
    """How a channel behaves; its members are told."""

    name: str
    capacity_bytes: float = 256 * 2**20
    capacity: float = math.inf
    ordered: bool = False
    consumers: int = 0
    producers: int = 1
    redeliver: bool = False


class HubChannel:
    """Not safe for threads: the hub holds a lock."""

    def __init__(self, settings: ChannelSettings, numbers: itertools.count[int]) -> None:
        self.settings = settings
        self.exchange: Exchange[Payload] = Exchange(
            settings.name,
            settings.capacity,
            settings.capacity_bytes,
            ordered=settings.ordered,
            consumers=settings.consumers,
        )
        self.members: list[Member] = []
        self.failure: BaseException | None = None
        self._numbers = numbers
        self._unfinished = settings.producers
        self._askers: dict[Key, set[Member]] = {}
        self._abandoned = False
        self._told: tuple[bool, BaseException | None] = (False, None)
        self._actions = {
            Say.PUT: self._put,
            Say.ASK: self._ask,
            Say.WITHDRAW: self._withdraw,
            Say.RECALL: self._recall,
            Say.FINISH: self._finish,
            Say.CLOSE: self._close,
            Say.ABANDON: self._abandon,
            Say.BYE: self._bye,
            Say.RELEASE: self._release,
            Say.FORGET: self._forget,
        }

    def join(self, member: Member) -> None:
        """Take in a worker."""
        self.members.append(member)
        member.post(Say.WELCOME, (self.settings,))
        if self.exchange.closed:
            member.post(Say.OVER, (self.failure,))

    def handle(self, member: Member, frame: Frame) -> None:
        """What a member says."""
        self._actions[Say(frame.say)](member, frame)

    def flush(self) -> None:
        """Send what was collected for the members."""
        now = (self.exchange.closed, self.failure)
        if now != self._told:
            self._told = now
            for member in self.members:
                member.post(Say.OVER, (self.failure,))
        for member in self.members:
            member.flush()

    def gone(self, member: Member) -> None:
        """A member's end of the connection is closed."""
        self.members.remove(member)
        self._forget_asker(member)
        self._stop_waiting(member)
        if not member.left:
            self._died(member)
        member.settle_done(list(member.held))
        member.release_all()

    def fail(self, error: BaseException) -> None:
        """Nothing works any more, for anybody."""
        self.failure = error
        for offer in self.exchange.fail(error):
            offer.item.let_go()

    def end(self, error: BaseException | None = None) -> None:
        """Close, and drop what is inside."""
        for offer in self.exchange.abandon(error):
            offer.item.let_go()
        self._abandoned = True

    def _put(self, member: Member, frame: Frame) -> None:
        ticket, key, weight, order, promised, size, content = frame.fields
        member.has_put = True
        payload = member.payload_of(frame, content, self._numbers)
        offer = MemberOffer(payload, weight, size, key, order, promised, member=member, ticket=ticket)
        member.offers[ticket] = offer
        self.exchange.offer(offer)

    def _ask(self, member: Member, frame: Frame) -> None:
        ticket, key, consumer, most, done = frame.fields
        member.has_asked = True
        member.settle_done(done)
        request = MemberRequest(key, consumer, member=member, ticket=ticket)
        member.requests[ticket] = request
        try:
            self.exchange.ask(request)
        except RlinfError as error:
            request.refuse(error)
            return
        self._askers.setdefault(key, set()).add(member)
        if most > 1 and request.offer is not None:
            self._send_ahead(request, most - 1)

    def _send_ahead(self, request: MemberRequest, most: int) -> None:
        """More items, if that takes nothing away from others who could do them sooner."""
        waiting = self.exchange.waiting(request.key, request.consumer)
        rivals = len(self._askers[request.key]) - 1
        if rivals and not self.settings.consumers:
            most = min(most, len(waiting) // (4 * (rivals + 1)))
        room = _EXTRA_BYTES
        assert request.member is not None
        while most > 0 and waiting and len(waiting[0].item.body) <= room:
            room -= len(waiting[0].item.body)
            most -= 1
            offer = self.exchange.take_waiting(request.key, request.consumer)
            request.member.deliver(offer, request, asked=False)

    def _withdraw(self, member: Member, frame: Frame) -> None:
        request = member.requests.pop(frame.fields[0], None)
        if request is not None:  # otherwise an item or an error is under way
            self.exchange.withdraw(request)
            member.post(Say.NOTHING, (request.ticket, None))

    def _recall(self, member: Member, frame: Frame) -> None:
        offer = member.offers.get(frame.fields[0])
        if offer is not None:
            self.exchange.recall(offer)
            offer.settle(False)

    def _finish(self, member: Member, frame: Frame) -> None:
        member.finished = True
        self._unfinished -= 1
        if self._unfinished <= 0:
            self.exchange.close()

    def _close(self, member: Member, frame: Frame) -> None:
        member.finished = True
        self.exchange.close(frame.fields[0])

    def _abandon(self, member: Member, frame: Frame) -> None:
        self.end(frame.fields[0])

    def _bye(self, member: Member, frame: Frame) -> None:
        member.left = True
        self._forget_asker(member)
        member.settle_done(frame.fields[0])
        self._stop_waiting(member)
        self._put_back(member, unopened=True)

    def _release(self, member: Member, frame: Frame) -> None:
        for number in frame.fields[0]:
            member.release(number)

    def _forget(self, member: Member, frame: Frame) -> None:
        for number in frame.fields[0]:
            segment = member.segments.get(number)
            if segment is not None and not segment.holders:
                segment.destroy()

    def _forget_asker(self, member: Member) -> None:
        for askers in self._askers.values():
            askers.discard(member)

    def _stop_waiting(self, member: Member) -> None:
        for request in member.requests.values():
            self.exchange.withdraw(request)
        for offer in list(member.offers.values()):
            if not offer.promised:
                self.exchange.recall(offer)
                offer.item.let_go()
        member.requests.clear()
        member.offers.clear()

    def _put_back(self, member: Member, *, unopened: bool) -> None:
        """Give what it has not done to others, the oldest first."""
        for offer, consumer in member.take_back(unopened=unopened):
            self.exchange.put_back(offer, consumer)

    def _died(self, member: Member) -> None:
        others = any(each.has_asked and not each.left for each in self.members)
        if self.settings.redeliver and member.has_asked and not member.has_put and others:
            self._put_back(member, unopened=False)
            return
        if self.failure is not None or self._abandoned:
            return
        over = self.exchange.closed and self.exchange.is_empty()
        if not member.held and (over or member.finished):
            return
        kind = ConsumerDied if member.held or (member.has_asked and not member.has_put) else ProducerDied
        held = f"; it held {len(member.held)} items that were not done with" if member.held else ""
        self.fail(
            kind(
                f"channel {self.settings.name!r}: {member.worker} (pid {member.pid}) died before it had said "
                f"goodbye{held}. What it printed last stands in its log",
                worker=member.worker,
            )
        )
