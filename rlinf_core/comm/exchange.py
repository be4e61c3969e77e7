"""Who gets which item when: keyed queues with capacity, order and balance, without threads or sockets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rlinf_core.comm.offer import Key, Offer, Request
from rlinf_core.errors import ChannelClosed, ConfigError, RlinfError

Item = TypeVar("Item")
_ANYONE: Hashable = None  # the slot of a lane whose items belong to whoever asks first


@dataclass(slots=True, eq=False)
class _Lane(Generic[Item]):
    """What concerns one key. A slot is a consumer where shares are fixed, otherwise `_ANYONE`."""

    ready: dict[Hashable, deque[Offer[Item]]] = field(default_factory=dict)
    requests: dict[Hashable, list[Request[Item]]] = field(default_factory=dict)
    early: dict[int, Offer[Item]] = field(default_factory=dict)  # ordered, and not their turn yet
    pending: deque[Offer[Item]] = field(default_factory=deque)  # waiting for room
    due: int = 0
    weight: float = 0.0
    size: int = 0


class Exchange(Generic[Item]):
    """Matches offers with requests. Not safe for threads: its owner holds a lock.

    `capacity` bounds the weight and `capacity_bytes` the size inside, per key; an item passes while
    less than that is inside. `ordered`: items of a key come in the order of their numbers 0, 1, 2, ...
    `consumers`: each item belongs to the consumer (0 to n-1) with the least total weight so far, ties to
    the lowest, however long that one takes; otherwise it goes to the least loaded of those that wait.
    `heaviest`: of the items that wait, the heaviest is handed out first; of equals, the oldest.
    """

    def __init__(
        self,
        name: str,
        capacity: float = math.inf,
        capacity_bytes: float = math.inf,
        *,
        ordered: bool = False,
        heaviest: bool = False,
        consumers: int = 0,
    ) -> None:
        if capacity <= 0 or capacity_bytes <= 0:
            raise ConfigError(f"channel {name!r}: its capacity is not above 0, so nothing could pass")
        if ordered and heaviest:
            raise ConfigError(f"channel {name!r}: items come ordered or the heaviest first; choose one")
        self.name = name
        self.capacity = capacity
        self.capacity_bytes = capacity_bytes
        self.ordered = ordered
        self.heaviest = heaviest
        self.loads: dict[Hashable, float] = dict.fromkeys(range(consumers), 0.0)
        self.closed = False
        self.error: BaseException | None = None
        self._shares = consumers > 0
        self._lanes: dict[Key, _Lane[Item]] = {}

    def offer(self, offer: Offer[Item]) -> None:
        """Take the item in now, or as soon as its key has room."""
        if self.closed:
            offer.settle(False)
            return
        lane = self._lanes.get(offer.key)
        if lane is None:
            lane = self._lanes[offer.key] = _Lane()
        error = self._wrong_order(lane, offer) if self.ordered else None
        if error is not None:
            offer.settle(False, error)
        elif self._fits(lane, offer):
            self._take_in(lane, offer)
        else:
            lane.pending.append(offer)

    def ask(self, request: Request[Item]) -> None:
        """Give the request its item now, or as soon as there is one, or the reason why not."""
        slot = self._slot(request)
        lane = self._lanes.get(request.key)
        if lane is None:
            lane = self._lanes[request.key] = _Lane()
        lane.requests.setdefault(slot, []).append(request)
        self._hand_out(lane, slot)
        if self.closed and not request.settled:
            self._end(lane)
        self._forget_empty(request.key, lane)

    def waiting(self, key: Key, consumer: Hashable) -> deque[Offer[Item]]:
        """Items that nobody has asked for yet."""
        lane = self._lanes.get(key)
        slot = consumer if self._shares else _ANYONE
        return lane.ready.get(slot, deque()) if lane else deque()

    def take_waiting(self, key: Key, consumer: Hashable) -> Offer[Item]:
        """The next of them."""
        return self._pop(self._lanes[key], self.waiting(key, consumer), consumer)

    def withdraw(self, request: Request[Item]) -> None:
        """The one who asked waits no longer."""
        lane = self._lanes.get(request.key)
        for requests in lane.requests.values() if lane else ():
            if request in requests:
                requests.remove(request)

    def recall(self, offer: Offer[Item]) -> None:
        """The one who offered waits no longer."""
        lane = self._lanes.get(offer.key)
        if lane is not None and offer in lane.pending:
            lane.pending.remove(offer)

    def put_back(self, offer: Offer[Item], consumer: Hashable) -> None:
        """An item that was handed out and not used: the next one of its key."""
        lane = self._lanes.setdefault(offer.key, _Lane())
        if consumer is not _ANYONE:
            self.loads[consumer] -= offer.weight
        slot = consumer if self._shares else _ANYONE
        lane.weight += offer.weight
        lane.size += offer.size
        lane.ready.setdefault(slot, deque()).appendleft(offer)
        self._hand_out(lane, slot)

    def close(self, error: BaseException | None = None) -> None:
        """No more offers. What is inside is still handed out, then requests get the error."""
        if self.closed:
            return
        self.closed, self.error = True, error
        for lane in list(self._lanes.values()):
            pending, lane.pending = lane.pending, deque()
            for offer in pending:
                if offer.promised:
                    self._take_in(lane, offer)
                else:
                    offer.settle(False)
            self._end(lane)

    def abandon(self, error: BaseException | None = None) -> list[Offer[Item]]:
        """Close, and drop and return what is inside; without effect when closed and empty."""
        if self.closed and not any(True for lane in self._lanes.values() for _ in _inside(lane)):
            return []
        return self.fail(error)

    def fail(self, error: BaseException | None) -> list[Offer[Item]]:
        """As `abandon`, and also who asks a channel that has ended gets the error from now on."""
        dropped = [offer for lane in self._lanes.values() for offer in _inside(lane)]
        for lane in self._lanes.values():
            for offer in lane.pending:
                offer.settle(False)
            lane.ready, lane.early, lane.pending = {}, {}, deque()
            lane.weight, lane.size = 0.0, 0
        self.closed, self.error = True, error
        for lane in list(self._lanes.values()):
            self._end(lane)
        return dropped

    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return not any(lane.early or any(lane.ready.values()) for lane in self._lanes.values())

    def _slot(self, request: Request[Item]) -> Hashable:
        if self._shares and request.consumer not in self.loads:
            raise ConfigError(
                f"channel {self.name!r} hands out to consumers 0 to {len(self.loads) - 1}, and "
                f"{request.consumer!r} asked: give get(consumer=...) one of them"
            )
        return request.consumer if self._shares else _ANYONE

    def _wrong_order(self, lane: _Lane[Item], offer: Offer[Item]) -> RlinfError | None:
        order = offer.order
        if order is None:
            return RlinfError(f"channel {self.name!r} is ordered: put(item, order=0, 1, 2, ...)")
        taken = order < lane.due or order in lane.early or any(each.order == order for each in lane.pending)
        if taken:
            return RlinfError(f"channel {self.name!r}: item number {order} of key {offer.key!r} came twice")
        return None

    def _fits(self, lane: _Lane[Item], offer: Offer[Item]) -> bool:
        return (not lane.pending and self._has_room(lane)) or self._is_missing(lane, offer)

    def _is_missing(self, lane: _Lane[Item], offer: Offer[Item]) -> bool:
        """Whether all that fills the lane waits for this item."""
        return self.ordered and offer.order == lane.due and not any(lane.ready.values())

    def _has_room(self, lane: _Lane[Item]) -> bool:
        return lane.weight < self.capacity and lane.size < self.capacity_bytes

    def _take_in(self, lane: _Lane[Item], offer: Offer[Item]) -> None:
        lane.weight += offer.weight
        lane.size += offer.size
        offer.settle(True)
        if not self.ordered:
            self._make_ready(lane, offer)
            return
        assert offer.order is not None
        lane.early[offer.order] = offer
        while lane.due in lane.early:
            due = lane.early.pop(lane.due)
            lane.due += 1
            self._make_ready(lane, due)

    def _make_ready(self, lane: _Lane[Item], offer: Offer[Item]) -> None:
        slot: Hashable = _ANYONE
        if self._shares:
            slot = min(self.loads, key=self.loads.__getitem__)
            self.loads[slot] += offer.weight
        ready = lane.ready.setdefault(slot, deque())
        place = len(ready)
        while self.heaviest and place and ready[place - 1].weight < offer.weight:
            place -= 1
        ready.insert(place, offer)
        self._hand_out(lane, slot)

    def _hand_out(self, lane: _Lane[Item], slot: Hashable) -> None:
        ready, requests = lane.ready.get(slot), lane.requests.get(slot)
        while ready and requests:
            request = requests[0] if len(requests) == 1 else min(requests, key=self._load)
            requests.remove(request)
            request.give(self._pop(lane, ready, request.consumer))

    def _load(self, request: Request[Item]) -> float:
        return self.loads.get(request.consumer, 0.0)

    def _pop(self, lane: _Lane[Item], ready: deque[Offer[Item]], consumer: Hashable) -> Offer[Item]:
        offer = ready.popleft()
        lane.weight -= offer.weight
        lane.size -= offer.size
        if consumer is not None and not self._shares:
            self.loads[consumer] = self.loads.get(consumer, 0.0) + offer.weight
        self._admit(lane)
        return offer

    def _admit(self, lane: _Lane[Item]) -> None:
        """Take in what waits and has room now."""
        while lane.pending and self._has_room(lane):
            self._take_in(lane, lane.pending.popleft())
        missing = next((offer for offer in lane.pending if self._is_missing(lane, offer)), None)
        if missing is not None:
            lane.pending.remove(missing)
            self._take_in(lane, missing)

    def _end(self, lane: _Lane[Item]) -> None:
        """Tell those who wait for what will not come; the channel is closed."""
        for slot, requests in lane.requests.items():
            if not lane.ready.get(slot):
                waiting, requests[:] = list(requests), []
                for request in waiting:
                    request.refuse(self._reason(lane))

    def _reason(self, lane: _Lane[Item]) -> BaseException:
        if self.error is not None:
            return self.error
        if lane.early:
            return RlinfError(
                f"channel {self.name!r} was closed before item number {lane.due} came, "
                f"and {len(lane.early)} later ones wait for it"
            )
        return ChannelClosed(f"channel {self.name!r} is closed and empty")

    def _forget_empty(self, key: Key, lane: _Lane[Item]) -> None:
        """Keys come and go: a lane without anything in it is dropped, unless it has counted."""
        holds = lane.due or lane.early or lane.pending
        if not holds and not any(lane.ready.values()) and not any(lane.requests.values()):
            del self._lanes[key]


def _inside(lane: _Lane[Item]) -> Iterator[Offer[Item]]:
    for ready in lane.ready.values():
        yield from ready
    yield from lane.early.values()
    yield from lane.pending
