"""One worker at one channel, as the hub sees it: what it waits for, what it holds, what it is told."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_core.comm.frames import Content, Frame, Say
from rlinf_core.comm.leases import Ref
from rlinf_core.comm.offer import Offer, Request
from rlinf_core.comm.payload import HubSegment, Payload

_ANSWERS_AT_ONCE = 64  # answers nobody waits for, which go together
Post = Callable[[Say, tuple[Any, ...], Sequence[Any], Sequence[int]], None]  # fields, body, descriptors


@dataclass(slots=True, eq=False)
class MemberOffer(Offer[Payload]):
    """An item that a member put."""

    member: Member | None = None
    ticket: int = 0

    def settle(self, taken_in: bool, error: BaseException | None = None) -> None:
        """Tell it, together with other answers where it does not wait."""
        Offer.settle(self, taken_in, error)
        if not taken_in:
            self.item.let_go()
        assert self.member is not None
        self.member.answer(self)


@dataclass(slots=True, eq=False)
class MemberRequest(Request[Payload]):
    """A member that waits for an item."""

    member: Member | None = None
    ticket: int = 0

    def give(self, offer: Offer[Payload]) -> None:
        """Send the item."""
        Request.give(self, offer)
        assert self.member is not None
        self.member.requests.pop(self.ticket, None)
        self.member.deliver(offer, self)

    def refuse(self, error: BaseException) -> None:
        """Say that none will come."""
        Request.refuse(self, error)
        assert self.member is not None
        self.member.requests.pop(self.ticket, None)
        self.member.post(Say.NOTHING, (self.ticket, error))


@dataclass(eq=False)
class Member:
    """A connection of a worker to a channel."""

    worker: str
    pid: int
    send: Post
    redeliver: bool
    far: bool = False  # on another machine, which shares no memory
    has_put: bool = False
    has_asked: bool = False
    finished: bool = False
    left: bool = False
    segments: dict[int, HubSegment] = field(default_factory=dict)  # its own, by its numbers
    held: dict[int, tuple[Offer[Payload], Hashable]] = field(default_factory=dict)  # items, not done with
    requests: dict[int, MemberRequest] = field(default_factory=dict)
    offers: dict[int, MemberOffer] = field(default_factory=dict)
    holding: Counter[int] = field(default_factory=Counter)  # segments that it looks at, by our numbers
    known: dict[int, HubSegment] = field(default_factory=dict)  # whose descriptor it has, by our numbers
    _answers: list[tuple[int, bool, BaseException | None]] = field(default_factory=list)
    _somebody_waits: bool = False
    _released: list[int] = field(default_factory=list)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def post(self, say: Say, fields: tuple[Any, ...]) -> None:
        """Tell it something."""
        self.send(say, fields, (), ())

    def answer(self, offer: MemberOffer) -> None:
        """Whether its item was taken in."""
        self.offers.pop(offer.ticket, None)
        self._answers.append((offer.ticket, bool(offer.taken_in), offer.error))
        if not offer.promised or offer.error is not None or len(self._answers) >= _ANSWERS_AT_ONCE:
            self._somebody_waits = True

    def unused(self, segment: HubSegment) -> None:
        """Nobody looks at its segment any more."""
        self._released += [segment.own_number] * segment.puts
        segment.puts = 0

    def forget_own(self, segment: HubSegment) -> None:
        """Its segment is gone."""
        del self.segments[segment.own_number]

    def forget(self, segment: HubSegment) -> None:
        """A segment that it has mapped will not be used again."""
        del self.known[segment.number]
        if not segment.once:
            self.post(Say.FORGET, ((segment.number,),))

    def release(self, number: int) -> None:
        """It has dropped its view of a message in a segment."""
        self.holding[number] -= 1
        self.known[number].let_go()

    def release_all(self) -> None:
        """It is gone, and with it what it looked at."""
        for number, times in self.holding.items():
            for _ in range(times):
                self.known[number].let_go()
        self.holding.clear()
        for segment in self.known.values():
            segment.knowers.discard(self)
        for segment in list(self.segments.values()):
            segment.orphan()

    def flush(self) -> None:
        """Send what was collected."""
        if self._somebody_waits:
            answers, self._answers, self._somebody_waits = self._answers, [], False
            self.post(Say.ANSWERS, (answers,))
        if self._released:
            numbers, self._released = self._released, []
            self.post(Say.RELEASE, (numbers,))

    def deliver(self, offer: Offer[Payload], request: MemberRequest, *, asked: bool = True) -> None:
        """Send an item, with the descriptors of segments that it does not know; all of it where it is far."""
        number = next(self._ids)
        self.held[number] = (offer, request.consumer)
        payload = offer.item
        refs: list[tuple[int, int, int, int, bool]] = []
        fresh, descriptors = [], []
        for segment, begin, size in payload.places:
            self.holding[segment.number] += 1
            segment.holders += self.redeliver  # otherwise the item's hold becomes the member's
            refs.append((segment.number, segment.capacity, begin, size, segment.once))
            if segment.number not in self.known:
                self.known[segment.number] = segment
                segment.knowers.add(self)
                fresh.append(segment.number)
                descriptors.append(segment.descriptor)
        body: tuple[Any, ...] = (payload.body,) if payload.body else ()
        if self.far:
            pieces, refs = payload.inline()
            body, fresh, descriptors = (*body, *pieces), [], []
        content = (payload.parts, payload.in_segment, tuple(refs), tuple(fresh))
        fields = (request.ticket, asked, number, (request.key, request.consumer), content)
        self.send(Say.ITEM, fields, body, descriptors)

    def settle_done(self, numbers: Iterable[int]) -> None:
        """It needs these items no more."""
        for number in numbers:
            offer, _ = self.held.pop(number)
            for segment, _, _ in offer.item.places if self.far else ():
                self.release(segment.number)  # nobody looks at it there
            if self.redeliver:
                offer.item.let_go()

    def take_back(self, *, unopened: bool) -> list[tuple[Offer[Payload], Hashable]]:
        """The items that it holds, the newest first."""
        items = [self.held.pop(number) for number in sorted(self.held, reverse=True)]
        for offer, _ in items if unopened else ():
            for segment, _, _ in offer.item.places:
                self.holding[segment.number] -= 1
                segment.holders -= self.redeliver
        return items

    def payload_of(self, frame: Frame, content: Content, numbers: itertools.count[int]) -> Payload:
        """What it put; the payload holds its segments."""
        parts, in_segment, refs, fresh = content
        descriptors = dict(zip(fresh, frame.descriptors, strict=True))
        places = []
        for ref in map(Ref._make, refs):
            segment = self.segments.get(ref.number)
            if segment is None:
                descriptor = descriptors.pop(ref.number)
                segment = HubSegment(next(numbers), self, ref.number, ref.capacity, ref.once, descriptor)
                self.segments[ref.number] = segment
            segment.holders += 1
            segment.puts += 1
            places.append((segment, ref.begin, ref.size))
        return Payload(parts, frame.body, in_segment, places)
