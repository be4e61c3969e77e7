"""Weights for other machines: only the entries that have changed, where those are few.

With the learning rates of reinforcement learning most entries of a bfloat16 copy stay the same from step to
step. A patch holds the others, and how far each is from the one before, in a byte (255 says: 255 further, and
not there yet).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_core.api.backend import WeightBucket
from rlinf_core.comm.places import arranged, cast_bucket, checksum, octets
from rlinf_core.comm.weights import Changes, sampled_share
from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 1 << 17  # entries that are compared at a time, and stay in the processor's cache
_SAMPLED_FROM = 1 << 20  # entries, of which it is guessed first whether many have changed
_FAR = 255
_BUCKET_BYTES = 64 << 20
_WORTH = 0.5  # of the bytes of a tensor, above which it is sent whole


@dataclass(frozen=True)
class Patch:
    """Entries of a tensor that are different from before."""

    gaps: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        """On the way."""
        return int(self.gaps.nbytes + self.values.nbytes)


@dataclass(frozen=True)
class DeltaBucket:
    """A bucket for those who have the version `base`."""

    version: int
    base: int
    patches: dict[str, Patch]
    whole: dict[str, Tensor]
    sums: dict[str, int]  # of the tensors as they are then
    last: bool = False


class Differ:
    """The sender's side: it has what the receivers have."""

    def __init__(self) -> None:
        self.changes = Changes()
        self._version = -1
        self._base = -1
        self._sent: dict[str, Tensor] = {}

    def begin(self, version: int, *, whole: bool) -> None:
        """Start on a version. `whole`: receivers have nothing yet."""
        self._version, self._base = version, -1 if whole else self._version
        self.changes = Changes()
        if whole:
            self._sent.clear()

    def write(self, bucket: WeightBucket, dtype: str = "", *, checked: bool = True) -> DeltaBucket:
        """What is to be sent of a bucket, floats as `dtype`; always with checksums."""
        delta = DeltaBucket(bucket.version, self._base, {}, {}, {}, bucket.last)
        for name, tensor in cast_bucket(bucket, dtype).tensors.items():
            now = tensor.detach().cpu().contiguous()
            delta.sums[name] = checksum(now)
            patch = self._patch(name, now)
            if patch is None:
                delta.whole[name] = self._sent[name]
            else:
                delta.patches[name] = patch
            self.changes.sent_bytes += (now if patch is None else patch).nbytes
        return delta

    def again(self) -> Iterator[DeltaBucket]:
        """All that the receivers have, for one that has nothing."""
        parts = list(_parts(self._sent))
        for number, part in enumerate(parts, 1):
            sums = {name: checksum(tensor) for name, tensor in part.items()}
            yield DeltaBucket(self._version, -1, {}, part, sums, last=number == len(parts))

    def _patch(self, name: str, now: Tensor) -> Patch | None:
        """Worth sending instead of the whole; from now on the receivers have it."""
        before = self._sent.get(name)
        if before is None or (before.shape, before.dtype) != (now.shape, now.dtype):
            self._sent[name] = now.clone()
            return None
        self.changes.entries += now.numel()
        share = sampled_share(before, now) if now.numel() >= _SAMPLED_FROM else 0.0
        if share * (1 + 1 / now.element_size()) >= _WORTH:  # with a gap for each it would be no smaller
            self.changes.changed += share * now.numel()
            octets(before)[:] = octets(now)
            return None
        indices = changed(before, now)
        self.changes.changed += len(indices)
        octets(before)[:] = octets(now)
        patch = make_patch(now, indices)
        return patch if patch.nbytes < _WORTH * now.nbytes else None


@dataclass
class Patched:
    """The receiver's side: weights as they were sent last, in memory that its module may take for its own."""

    version: int = -1
    _held: dict[str, Tensor] = field(default_factory=dict)

    def has(self, delta: DeltaBucket) -> bool:
        """Whether these changes are in what is here, which came later than they were made."""
        return delta.base >= 0 and delta.version <= self.version

    def all(self) -> Iterator[WeightBucket]:
        """What is here."""
        parts = list(_parts(self._held))
        for number, part in enumerate(parts, 1):
            yield WeightBucket(self.version, _parameters(part), last=number == len(parts))

    def open(self, delta: DeltaBucket) -> WeightBucket:
        """All tensors of the bucket. Raises `ModelError` where it was made for another version, or where what
        came is not what was sent."""
        if delta.base not in (-1, self.version):
            raise ModelError(
                f"weights of version {delta.version} came as changes of version {delta.base}, but "
                f"version {self.version} is here; nothing was installed"
            )
        self._take(delta.whole)
        for name, patch in delta.patches.items():
            apply_patch(self._held[name], patch)
        for name, wanted in delta.sums.items():
            if checksum(self._held[name]) != wanted:
                raise ModelError(
                    f"weight {name!r} of version {delta.version} is not what was sent: its checksum differs"
                )
        if delta.last:
            self.version = delta.version
        held = {name: self._held[name] for name in delta.sums}
        return WeightBucket(delta.version, _parameters(held), delta.last)

    def _take(self, sent: Mapping[str, Tensor]) -> None:
        """Copy whole tensors; those that are new go into one piece of memory."""
        import torch

        new = {name: tensor for name, tensor in sent.items() if not self._fits(name, tensor)}
        places, size = arranged(new)
        piece = torch.empty(size, dtype=torch.uint8)
        for place in places:
            kind = new[place.name].dtype
            end = place.begin + new[place.name].nbytes
            self._held[place.name] = piece[place.begin : end].view(kind).view(place.shape)
        for name, tensor in sent.items():
            octets(self._held[name])[:] = octets(tensor)

    def _fits(self, name: str, tensor: Tensor) -> bool:
        held = self._held.get(name)
        return held is not None and (held.shape, held.dtype) == (tensor.shape, tensor.dtype)


def _parts(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Divided into buckets."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        part[name] = tensor
        size += tensor.nbytes
        if size >= _BUCKET_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _parameters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    import torch

    return {name: torch.nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()}


def changed(before: Tensor, now: Tensor) -> Any:  # Any: a numpy array
    """Indices of entries whose bits differ, in order; both are contiguous and on the CPU."""
    import numpy as np

    kind = np.dtype(f"u{now.element_size()}")
    old, new = octets(before).view(kind), octets(now).view(kind)
    found = [np.zeros(0, np.int64)]
    for begin in range(0, len(new), _BLOCK):
        found.append(_differing(old[begin : begin + _BLOCK], new[begin : begin + _BLOCK]) + begin)
    return np.concatenate(found)


def make_patch(now: Tensor, indices: Any) -> Patch:  # Any: a numpy array
    """Of these entries."""
    import numpy as np
    import torch

    far, near = np.divmod(np.diff(indices, prepend=0), _FAR)
    gaps = np.full(len(indices) + int(far.sum()), _FAR, np.uint8)
    gaps[np.cumsum(far + 1) - 1] = near
    bits = octets(now).view(f"u{now.element_size()}")[indices]
    return Patch(torch.from_numpy(gaps), torch.from_numpy(bits.view(np.uint8)).view(now.dtype))


def apply_patch(target: Tensor, patch: Patch) -> None:
    """Put the entries in their places."""
    import numpy as np

    gaps = patch.gaps.numpy()
    indices = np.cumsum(gaps, dtype=np.int64)[gaps != _FAR]
    kind = f"u{target.element_size()}"
    octets(target).view(kind)[indices] = octets(patch.values).view(kind)


def _differing(old: Any, new: Any) -> Any:  # Any: numpy arrays of one block
    """Looks at words of eight bytes first, of which often few differ."""
    import numpy as np

    many = 8 // new.itemsize
    whole = len(new) // many * many
    words = np.flatnonzero(old[:whole].view(np.uint64) != new[:whole].view(np.uint64))
    if len(words) * many * 16 > whole:
        return np.flatnonzero(old != new)
    near = (words[:, None] * many + np.arange(many)).ravel()
    near = np.concatenate([near, np.arange(whole, len(new))])
    return near[old[near] != new[near]]
