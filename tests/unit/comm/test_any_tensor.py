"""Tensors of any kind, in nested dataclasses, pass every way that messages and weights take."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf_core.api import WeightBucket
from rlinf_core.comm.hub import ChannelHub
from rlinf_core.comm.network import listen_at, stay_alert
from rlinf_core.comm.patches import Differ, Patched
from rlinf_core.comm.weights import WeightBoard, WeightReader
from rlinf_core.comm.wire import Wire, pack

KINDS = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.complex64,
)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.T,
    "every other row": lambda tensor: tensor[::2],
    "a column": lambda tensor: tensor[:, 1],
    "expanded": lambda tensor: tensor[:1].expand(3, -1),
    "reversed axes": lambda tensor: tensor.view(2, -1, 5).permute(2, 0, 1),
    "empty": lambda tensor: tensor[:0],
    "a number": lambda tensor: tensor[0, 0],
    "from the middle": lambda tensor: tensor[3:, 2:],
}


@dataclass(frozen=True, slots=True)
class Leaf:
    tensor: Tensor
    tied: Tensor
    array: NDArray[np.float32]


@dataclass
class Nested:
    leaves: dict[str, Leaf]
    rest: tuple[Leaf | None, str]


def tensors(rows: int) -> dict[str, Tensor]:
    """Of every kind and layout."""
    torch.manual_seed(rows)
    found: dict[str, Tensor] = {}
    for kind in KINDS:
        drawn = torch.randn(rows, 10) * 9
        made = drawn > 0 if kind is torch.bool else drawn.to(kind)
        found |= {f"{kind} {name}": change(made) for name, change in LAYOUTS.items()}
    return found


def nested(rows: int) -> Nested:
    array = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    leaves = {name: Leaf(tensor, tensor, array.T) for name, tensor in tensors(rows).items()}
    return Nested(leaves, (next(iter(leaves.values())), "ü"))


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def same(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape, bits(one)) == (other.dtype, other.shape, bits(other))


def by_wire(item: Nested, sockets: tuple[socket.socket, socket.socket]) -> Nested:
    left, right = Wire(sockets[0]), Wire(sockets[1])
    sender = threading.Thread(target=lambda: left.send(3, 1, pack(item)))
    sender.start()
    message = right.receive()
    while message is not None and message.kind != 3:
        message = right.receive()
    sender.join(30)
    assert message is not None
    got: Nested = message.load()
    left.close()
    right.close()
    return got


def near_wire(item: Nested) -> Nested:
    return by_wire(item, socket.socketpair())


def far_wire(item: Nested) -> Nested:
    with listen_at("127.0.0.1") as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    stay_alert(here, 5.0)
    return by_wire(item, (here, there))


def channel(item: Nested, *, far: bool) -> Nested:
    with ChannelHub("127.0.0.1") as hub:
        handle = hub.create("c")
        there = replace(handle, address="\0rlinf-nobody") if far else handle
        with there.connect("a") as outgoing, handle.connect("b") as incoming:
            outgoing.put(item)
            got: Nested = incoming.get(timeout_s=30)
            return got


WAYS: dict[str, Callable[[Nested], Nested]] = {
    "a wire of one machine": near_wire,
    "a wire between machines": far_wire,
    "a channel of one machine": lambda item: channel(item, far=False),
    "a channel between machines": lambda item: channel(item, far=True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [4, 3000])  # within a message, and beside it
def test_a_message_brings_every_tensor_as_it_was_and_ties_stay_ties(way: str, rows: int) -> None:
    item = nested(rows)
    got = WAYS[way](item)
    assert list(got.leaves) == list(item.leaves)
    for name, leaf in item.leaves.items():
        assert same(leaf.tensor, got.leaves[name].tensor), name
        assert got.leaves[name].tied is got.leaves[name].tensor
        np.testing.assert_array_equal(got.leaves[name].array, leaf.array)
    assert got.rest[0] is got.leaves[next(iter(item.leaves))]
    assert got.rest[1] == "ü"


def by_board(bucket: WeightBucket) -> WeightBucket:
    board = WeightBoard()
    board.begin(bucket.version, (), whole=True)
    return WeightReader().open(board.write(bucket))


def by_changes(bucket: WeightBucket) -> WeightBucket:
    differ = Differ()
    differ.begin(bucket.version, whole=True)
    return Patched().open(differ.write(bucket))


def by_changes_shown_to_others(bucket: WeightBucket) -> WeightBucket:
    board = WeightBoard()
    board.begin(bucket.version, (), whole=True, live=True)
    return WeightReader().open(board.write(by_changes(bucket)))


@pytest.mark.parametrize("way", [by_board, by_changes, by_changes_shown_to_others])
@pytest.mark.parametrize("rows", [4, 3000])
def test_a_bucket_brings_every_tensor_as_it_was(
    way: Callable[[WeightBucket], WeightBucket], rows: int
) -> None:
    sent = tensors(rows)
    sent |= {f"tied {name}": tensor for name, tensor in sent.items()}
    got = way(WeightBucket(7, sent, last=True))
    assert (got.version, got.last) == (7, True)
    assert list(got.tensors) == list(sent)
    for name, tensor in sent.items():
        assert same(tensor, got.tensors[name]), name


@pytest.mark.parametrize("seed", range(6))
def test_changes_of_any_share_give_every_version_bit_for_bit(seed: int) -> None:
    draw = random.Random(seed)
    differ, patched, again = Differ(), Patched(), Patched()
    own = {name: tensor.clone() for name, tensor in tensors(draw.choice((4, 40, 3000))).items()}
    for version in range(4):
        names = [name for name in own if version == 0 or draw.random() < 0.7]
        for name in names:
            share = draw.choice((0.0, 0.001, 0.3, 1.0))
            where = torch.rand(own[name].shape) < share
            own[name] = torch.where(where, torch.ones((), dtype=own[name].dtype), own[name])
        differ.begin(version, whole=version == 0)
        cut = draw.randrange(1, len(names))
        for part in (names[:cut], names[cut:]):
            bucket = WeightBucket(version, {name: own[name] for name in part}, last=part[-1] == names[-1])
            got = patched.open(differ.write(bucket))
            assert all(same(own[name], got.tensors[name]) for name in part)
        held = {name: tensor for each in patched.all() for name, tensor in each.tensors.items()}
        assert all(same(own[name], held[name]) for name in own)
    for delta in differ.again():
        fresh = again.open(delta)
        assert all(same(own[name], tensor) for name, tensor in fresh.tensors.items())
    assert again.version == patched.version == 3
