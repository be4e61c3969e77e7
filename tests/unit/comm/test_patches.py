"""Changed entries alone: applied, they give the later version bit for bit; encoded as worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlinf_core.api import WeightBucket
from rlinf_core.comm.patches import Differ, Patched, apply_patch, changed, make_patch
from rlinf_core.comm.places import checksum
from rlinf_core.errors import ModelError

KINDS = (torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.bool, torch.int64)


def test_gaps_are_bytes_and_far_ones_are_several() -> None:
    now = torch.zeros(2000, dtype=torch.bfloat16)
    now[[0, 1, 255, 510, 1999]] = 1.0
    patch = make_patch(now, changed(torch.zeros_like(now), now))
    assert patch.gaps.tolist() == [0, 1, 254, 255, 0, 255, 255, 255, 255, 255, 214]
    assert patch.values.tolist() == [1.0] * 5
    assert patch.nbytes == 11 + 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.0001, 0.02, 0.5, 1.0])
def test_a_patch_gives_the_later_version_bit_for_bit(kind: torch.dtype, share: float) -> None:
    draw = np.random.default_rng(int(1000 * share))
    for size in (0, 1, 7, 8, 1001, 300_001):
        before = torch.from_numpy(draw.integers(0, 2, (size, 8), np.uint8)).view(-1)
        before = before[: size * kind.itemsize].view(kind)
        now = before.clone()
        places = np.flatnonzero(draw.random(size) < share)
        octets_of(now)[places] ^= 1
        target = before.clone()
        patch = make_patch(now, changed(before, now))
        assert len(patch.values) == len(places)
        apply_patch(target, patch)
        assert torch.equal(octets_of(target), octets_of(now))


def octets_of(tensor: Tensor) -> Tensor:
    return tensor.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    )


def test_zeros_of_another_sign_and_numbers_that_are_none_are_told_by_their_bits() -> None:
    before = torch.tensor([0.0, float("nan"), 1.0])
    assert changed(before, torch.tensor([-0.0, float("nan"), 1.0])).tolist() == [0]


def bucket(version: int, **tensors: Tensor) -> WeightBucket:
    return WeightBucket(version, tensors, last=True)


def send(
    differ: Differ, patched: Patched, sent: WeightBucket, dtype: str = "", fresh: bool = False
) -> Tensor:
    differ.begin(sent.version, whole=fresh)
    return patched.open(differ.write(sent, dtype)).tensors["a"]


def test_few_changes_go_as_a_patch_and_many_as_a_whole() -> None:
    differ, patched = Differ(), Patched()
    weights = torch.randn(10_000)
    send(differ, patched, bucket(0, a=weights), fresh=True)
    assert differ.changes.sent_bytes == 40_000
    weights[::100] += 1
    assert torch.equal(send(differ, patched, bucket(1, a=weights)), weights)
    assert differ.changes.sent_bytes == 500
    assert differ.changes.share == 0.01
    weights[::2] += 1
    assert torch.equal(send(differ, patched, bucket(2, a=weights)), weights)
    assert differ.changes.sent_bytes == 40_000


def test_changes_are_those_that_the_receivers_dtype_shows() -> None:
    differ, patched = Differ(), Patched()
    weights = torch.ones(10_000)
    send(differ, patched, bucket(0, a=weights), "bfloat16", fresh=True)
    weights += 1e-6
    weights[3] = 2.0
    got = send(differ, patched, bucket(1, a=weights), "bfloat16")
    assert torch.equal(got, weights.to(torch.bfloat16))
    assert differ.changes.changed == 1


def test_changes_of_another_version_are_refused() -> None:
    differ, patched = Differ(), Patched()
    weights = torch.zeros(100)
    send(differ, Patched(), bucket(0, a=weights), fresh=True)
    with pytest.raises(ModelError, match="came as changes of version 0, but version -1 is here"):
        send(differ, patched, bucket(1, a=weights))


def test_what_was_damaged_on_the_way_is_refused() -> None:
    differ, patched = Differ(), Patched()
    weights = torch.zeros(1000)
    held = send(differ, patched, bucket(0, a=weights), fresh=True)
    held[5] = 1.0
    with pytest.raises(ModelError, match="weight 'a' of version 1 is not what was sent"):
        send(differ, patched, bucket(1, a=weights))


def test_receivers_that_start_anew_get_everything() -> None:
    differ = Differ()
    weights = torch.ones(1000)
    send(differ, Patched(), bucket(0, a=weights), fresh=True)
    assert torch.equal(send(differ, Patched(), bucket(0, a=weights), fresh=True), weights)


def test_a_checksum_counts_every_byte() -> None:
    assert checksum(torch.tensor([1, 2, 3], dtype=torch.uint8)) == 6
    assert checksum(torch.tensor([2**40, -1])) == (2**40 - 1) % 2**64
