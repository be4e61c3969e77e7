"""Weights that are divided among ranks: each writes its part, and receivers read the whole, bit for bit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rlinf_core.api import WeightBucket, WeightPart
from rlinf_core.comm.weights import WeightBoard, WeightReader

KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.bool)


def drawn(draw: random.Random) -> dict[str, Tensor]:
    """Tensors of any shape and dtype, by names of some length."""
    found: dict[str, Tensor] = {}
    for number in range(draw.randrange(1, 8)):
        shape = [draw.choice((0, 1, 2, 5, 31, 260)) for _ in range(draw.randrange(4))]
        tensor = 30 * torch.randn(shape)
        kind = draw.choice(KINDS)
        found[f"{number}.weight"] = tensor > 0 if kind is torch.bool else tensor.to(kind)
    return found


def divided(draw: random.Random, tensor: Tensor, ranks: int) -> list[WeightPart]:
    """Among ranks, some of which perhaps have nothing."""
    count = tensor.numel()
    cuts = [0, *sorted(draw.randrange(count + 1) for _ in range(ranks - 1)), count]
    flat, shape = tensor.reshape(-1), tuple(tensor.shape)
    parts = [WeightPart(shape, begin, flat[begin:end]) for begin, end in itertools.pairwise(cuts)]
    return draw.sample(parts, ranks)


def bits(tensor: Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


def passed(
    board: WeightBoard,
    writers: Sequence[WeightReader],
    reader: WeightReader,
    version: int,
    draw: random.Random,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What ranks have between them, and what a receiver reads of it."""
    own = drawn(draw)
    parts = {name: divided(draw, tensor, len(writers)) for name, tensor in own.items()}
    board.begin(version, [version - 1], whole=True)
    empty = {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in own.items()}
    room = board.reserve(WeightBucket(version, empty, last=True))
    for rank in draw.sample(range(len(writers)), len(writers)):
        writers[rank].fill(room, {name: each[rank] for name, each in parts.items()})
    board.look()
    board.end()
    return own, reader.open(room).tensors


@pytest.mark.parametrize("seed", range(20))
def test_any_division_among_any_ranks_is_read_as_one_version_after_version(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    board, reader = WeightBoard(), WeightReader()
    for version in range(5):
        writers = [WeightReader() for _ in range(draw.randrange(1, 6))]  # another number of ranks each time
        own, got = passed(board, writers, reader, version, draw)
        assert list(got) == list(own)
        for name, tensor in own.items():
            assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape)
            assert bits(got[name]) == bits(tensor)
        assert board.changes.sent_bytes == sum(tensor.nbytes for tensor in own.values())


def test_parts_are_cast_as_they_are_written_and_compared_with_the_version_before() -> None:
    board, writer, reader = WeightBoard(), WeightReader(), WeightReader()
    tensor = torch.randn(300, 1000)
    for version, wanted in enumerate((None, 0.0, 1.0)):
        board.begin(version, [version - 1], whole=version == 0)
        meta = torch.empty(300, 1000, device="meta")
        room = board.reserve(WeightBucket(version, {"a": meta}, last=True), "bfloat16")
        tensor += 1.0 if version == 2 else 0.0
        for begin in (0, 120_000):
            part = WeightPart((300, 1000), begin, tensor.view(-1)[begin : begin + 180_000])
            writer.fill(room, {"a": part})
        board.look()
        board.end()
        assert torch.equal(reader.open(room).tensors["a"], tensor.to(torch.bfloat16))
        assert board.changes.share == pytest.approx(wanted, abs=0.05)
