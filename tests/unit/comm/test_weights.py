"""Weights in shared memory: read bit for bit as written, in any layout, and never overwritten early."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlinf_core.api import WeightBucket
from rlinf_core.comm.places import arranged, cast_bucket, common_dtype, copy_into
from rlinf_core.comm.weights import SharedBucket, WeightBoard, WeightReader
from rlinf_core.errors import ModelError

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.bool,
    torch.int64,
    torch.uint8,
)


def random_tensor(draw: random.Random) -> Tensor:
    """Of any dtype and shape, perhaps empty, a scalar, transposed or a slice of something."""
    shape = [draw.choice((0, 1, 2, 3, 17, 300)) for _ in range(draw.randrange(4))]
    tensor = torch.randn(shape) * 50
    kind = draw.choice(DTYPES)
    tensor = (tensor > 0) if kind is torch.bool else tensor.to(kind)
    if len(shape) > 1 and draw.random() < 0.3:
        tensor = tensor.transpose(0, -1)
    if shape and shape[0] > 2 and draw.random() < 0.3:
        tensor = tensor[1::2]
    return tensor


def random_version(draw: random.Random, version: int) -> list[WeightBucket]:
    """Buckets of random sizes; some tensors have two names."""
    buckets, known = [], list[Tensor]()
    for number in range(draw.randrange(1, 5)):
        tensors = {}
        for index in range(draw.randrange(6)):
            tied = known and draw.random() < 0.2
            tensors[f"{number}.{index}"] = draw.choice(known) if tied else random_tensor(draw)
        known += tensors.values()
        buckets.append(WeightBucket(version, tensors))
    buckets[-1].last = True
    return buckets


def written(
    board: WeightBoard, buckets: Sequence[WeightBucket], in_use: Sequence[int] = ()
) -> list[SharedBucket]:
    board.begin(buckets[0].version, in_use, whole=buckets[0].version == 0)
    shared = [board.write(bucket) for bucket in buckets]
    board.end()
    return shared


def bits(tensor: Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def as_sent(bucket: WeightBucket, got: WeightBucket) -> bool:
    return (bucket.version, bucket.last) == (got.version, got.last) and all(
        (tensor.dtype, tensor.shape, bits(tensor))
        == (got.tensors[name].dtype, got.tensors[name].shape, bits(got.tensors[name]))
        for name, tensor in bucket.tensors.items()
    )


@pytest.mark.parametrize("seed", range(12))
def test_any_layout_of_any_dtypes_arrives_bit_for_bit_version_after_version(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    board, reader = WeightBoard(), WeightReader()
    for version in range(4):
        buckets = random_version(draw, version)
        for bucket, shared in zip(buckets, written(board, buckets, [version - 1]), strict=True):
            assert as_sent(bucket, reader.open(shared))
    board.close()


def test_a_version_in_use_stays_and_one_out_of_use_makes_room() -> None:
    board, reader = WeightBoard(), WeightReader()
    named = {"a": torch.zeros(1000)}

    def send(version: int, in_use: Sequence[int]) -> Tensor:
        named["a"].fill_(version)
        (shared,) = written(board, [WeightBucket(version, named)], in_use)
        return reader.open(shared).tensors["a"]

    held = [send(0, []), send(1, [0]), send(2, [0, 1])]
    assert [tensor[0].item() for tensor in held] == [0, 1, 2]
    size = board.memory_bytes()
    send(3, [2])
    assert board.memory_bytes() == size  # two of three slots were free
    assert held[2][-1] == 2


def test_what_is_sent_once_lies_there_for_ever() -> None:
    board, reader = WeightBoard(), WeightReader()
    first = written(board, [WeightBucket(0, {"base": torch.ones(50), "adapter": torch.zeros(5)})])
    base = reader.open(first[0]).tensors["base"]
    for version in range(1, 5):
        written(board, [WeightBucket(version, {"adapter": torch.full((5,), float(version))})], [version - 1])
    assert torch.equal(base, torch.ones(50))


def test_memory_does_not_grow_when_layouts_alternate() -> None:
    board = WeightBoard()
    large = {"a": torch.zeros(100_000)}
    small = {"a": torch.zeros(10)}
    for version in range(1, 4):
        written(board, [WeightBucket(version, large if version % 2 else small)])
    size = board.memory_bytes()
    for version in range(4, 20):
        written(board, [WeightBucket(version, large if version % 2 else small)])
    assert board.memory_bytes() == size


def shared_memory() -> set[int]:
    """The pieces of shared memory that this process holds, by inode: other tests may hold some too."""
    held = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            if "rlinf" in os.readlink(path):
                held.add(path.stat().st_ino)
        except FileNotFoundError:  # closed by another thread since it was listed
            continue
    return held


def _read(pipe: Connection) -> None:
    reader = WeightReader()
    while (shared := pipe.recv()) is not None:
        pipe.send(reader.open(shared).tensors["a"].sum().item())


def test_another_process_reads_them_and_a_killed_one_leaves_nothing() -> None:
    before = shared_memory()
    here, there = multiprocessing.get_context("spawn").Pipe()
    reader = multiprocessing.get_context("spawn").Process(target=_read, args=(there,))
    reader.start()
    board = WeightBoard()
    for version in range(3):
        (shared,) = written(board, [WeightBucket(version, {"a": torch.full((70_000,), float(version))})])
        here.send(shared)
        assert here.poll(60)
        assert here.recv() == 70_000 * version
    assert shared_memory() - before
    reader.kill()
    reader.join(10)
    board.close()
    assert not shared_memory() - before


def test_floats_are_cast_by_the_sender_and_nothing_else_is() -> None:
    board, reader = WeightBoard(), WeightReader()
    weight, count = torch.randn(100_000), torch.arange(5)
    bucket = WeightBucket(0, {"weight": weight, "count": count})
    board.begin(0, [], whole=True)
    shared = board.write(bucket, "bfloat16")
    got = reader.open(shared).tensors
    assert torch.equal(got["weight"], weight.to(torch.bfloat16))
    assert torch.equal(got["count"], count)
    assert shared.places[0][0].size < weight.nbytes
    sent = cast_bucket(bucket, "bfloat16").tensors
    assert torch.equal(sent["weight"], got["weight"])
    assert sent["count"] is count
    assert cast_bucket(bucket, "") is bucket


def test_a_common_dtype_is_one_that_all_floats_have() -> None:
    assert common_dtype([torch.zeros(1), torch.zeros(1, dtype=torch.int64)]) == "float32"
    assert common_dtype([torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)]) == ""
    assert common_dtype([]) == ""


@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_copies_are_those_of_torch(wanted: torch.dtype) -> None:
    for source in (
        torch.randn(300, 300),
        torch.randn(300, 300).T,
        torch.randn(3),
        torch.randn(600, 300)[::2],
    ):
        target = torch.zeros(source.shape, dtype=wanted)
        copy_into(target, source)
        assert torch.equal(target, source.to(wanted))


def test_places_do_not_overlap_and_are_aligned() -> None:
    places, size = arranged(
        {"a": torch.zeros(3), "b": torch.zeros(0), "c": torch.zeros(100, dtype=torch.bool)}
    )
    assert [(place.name, place.begin) for place in places] == [("a", 0), ("b", 64), ("c", 64)]
    assert size == 64 + 128


def test_live_parameters_are_seen_where_they_are_and_nothing_is_copied() -> None:
    flat = torch.zeros(600_000)
    named = {"a": torch.nn.Parameter(flat[:500_000].view(500, 1000)), "b": torch.nn.Parameter(flat[500_000:])}
    board, reader = WeightBoard(), WeightReader()

    def shown(version: int, extra: dict[str, Tensor]) -> dict[str, Tensor]:
        board.begin(version, [], whole=version == 0, live=True)
        shared = board.write(WeightBucket(version, {**named, **extra}))
        board.end()
        return reader.open(shared).tensors

    seen = shown(0, {"copied": torch.ones(3)})
    assert board.changes.sent_bytes == 12
    flat.fill_(7.0)
    assert seen["a"].shape == (500, 1000)
    assert {float(seen[name].min()) for name in named} == {7.0}
    again = shown(1, {})
    assert board.changes.sent_bytes == 0
    assert again["b"].data_ptr() == seen["b"].data_ptr()


def test_small_or_foreign_parameters_are_copied() -> None:
    board = WeightBoard()
    board.begin(0, [], whole=True, live=True)
    large = torch.zeros(400_000)
    board.write(
        WeightBucket(
            0,
            {
                "small": torch.nn.Parameter(torch.zeros(10)),
                "copy": large,
                "transposed": torch.nn.Parameter(torch.zeros(600, 700).T),
            },
        )
    )
    assert board.changes.sent_bytes == 4 * (10 + 400_000 + 420_000)


@pytest.mark.parametrize("live", [False, True])
def test_checksums_tell_a_version_that_was_written_over(live: bool) -> None:
    board, reader = WeightBoard(), WeightReader()
    tensor: Tensor = torch.nn.Parameter(torch.ones(400_000), requires_grad=False)
    board.begin(0, [], whole=True, live=live)
    shared = board.write(WeightBucket(0, {"a": tensor, "none": torch.zeros(0)}), checked=True)
    seen = reader.open(shared).tensors["a"]
    assert torch.equal(seen, tensor)
    with torch.no_grad():
        seen[17] = 2.0
    with pytest.raises(ModelError, match="weight 'a' of version 0 is not what was written"):
        reader.open(shared)
