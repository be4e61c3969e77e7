"""Items on their way through a channel: into frames and shared memory, and out of them."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

from rlinf_core.comm.frames import Content, Frame, Say
from rlinf_core.comm.leases import Ref, SegmentReader
from rlinf_core.comm.packing import pack, unpack
from rlinf_core.comm.payload import INLINE
from rlinf_core.comm.ports import Port
from rlinf_core.comm.segments import Segment, SegmentPool

SHARED_FROM = 64 * 1024  # bytes of an item; below, a copy through the socket is cheaper
_SMALLEST_POOL = 64 * 2**20


class Parcel:
    """An item that is ready to be sent once."""

    def __init__(self, parts: int, body: Sequence[Any], size: int) -> None:
        self.parts = parts
        self.body = body
        self.size = size
        self.in_segment = False
        self.places: list[tuple[Segment, Ref]] = []


class Parcels:
    """One worker's shared memory for one channel."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._pool = SegmentPool()
        self._reader = SegmentReader(port.release)
        self._sending = threading.Lock()  # a segment's descriptor goes with its first message

    def set_limit(self, capacity_bytes: float) -> None:
        """Keep about as much as fits into the channel."""
        if math.isfinite(capacity_bytes):
            self._pool.limit = max(_SMALLEST_POOL, int(1.5 * capacity_bytes))

    def wrap(self, item: Any) -> Parcel:
        """Copy the item into shared memory, where it is large and does not lie there already."""
        packed = pack(item, find=self._pool.find if self._pool.has_lent() else None)
        outside = sum(ref.size for _, ref in packed.outside)
        parcel = Parcel(packed.parts, packed.pieces, packed.size + outside)
        if self._port.shares and packed.size >= SHARED_FROM:
            segment = self._pool.place(packed.size)
            if segment is not None:
                segment.write(packed.pieces)
                parcel.in_segment, parcel.body = True, ()
                parcel.places.append((segment, segment.ref(0, packed.size)))
        parcel.places += packed.outside
        return parcel

    def send(self, parcel: Parcel, fields: tuple[Any, ...]) -> None:
        """Put it, with these fields before its content."""
        with self._sending:
            fresh = {each.number: each for each, _ in parcel.places if not each.known}
            refs = tuple(tuple(ref) for _, ref in parcel.places)
            content: Content = (parcel.parts, parcel.in_segment, refs, tuple(fresh))  # type: ignore[assignment]
            descriptors = [segment.descriptor for segment in fresh.values()]
            self._port.send(Say.PUT, (*fields, content), parcel.body, descriptors)
            for segment in fresh.values():
                segment.known = True
        self._pool.release([number for number, segment in fresh.items() if segment.once])
        retired = self._pool.retired()
        if retired:
            self._port.send(Say.FORGET, (retired,))

    def released(self, numbers: Sequence[int]) -> None:
        """Messages in these segments of ours are not looked at any more."""
        self._pool.release(numbers)

    def forget(self, numbers: Sequence[int]) -> None:
        """These segments of others will not be used again."""
        self._reader.forget(numbers)

    def learn(self, frame: Frame) -> None:
        """Map what is new in an item that has come."""
        _, _, refs, fresh = frame.fields[-1]
        if fresh:
            by_number = {ref[0]: Ref(*ref) for ref in refs}
            for number, descriptor in zip(fresh, frame.descriptors, strict=True):
                self._reader.learn(by_number[number], descriptor)

    def unwrap(self, frame: Frame) -> Any:
        """The item; to be called once."""
        parts, in_segment, refs, _ = frame.fields[-1]
        whole = memoryview(frame.body)
        views = [self._view(Ref(*ref), whole) for ref in refs]
        body = views.pop(0) if in_segment else whole
        return unpack(body, parts, views)

    def _view(self, ref: Ref, whole: memoryview) -> memoryview:
        """A piece, which came in the body of its frame or lies in shared memory."""
        if ref.number == INLINE:
            return whole[ref.begin : ref.begin + ref.size]
        return self._reader.open(ref)

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:  # Any: a torch or numpy dtype, and its array
        """An array or tensor in shared memory, or in ordinary memory where the pool is used up."""
        torch: Any = sys.modules.get("torch")  # Any: a module
        is_torch = hasattr(torch, "dtype") and isinstance(dtype, torch.dtype)
        if not is_torch:
            import numpy

            dtype = numpy.dtype(dtype)
        size = math.prod(shape) * int(dtype.itemsize)
        view = self._pool.lend(size) if size and self._port.shares else None
        if is_torch:
            if view is None:
                return torch.empty(tuple(shape), dtype=dtype)
            return torch.frombuffer(view, dtype=dtype).reshape(tuple(shape))
        if view is None:
            return numpy.empty(shape, dtype)
        return numpy.frombuffer(view, dtype).reshape(shape)
