"""Parts of tensors that pass from process to process: laid down here, taken here and there."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from rlinf_core.api.resizing import Block, Transfer
from rlinf_core.comm import handover
from rlinf_core.comm.handover import Laid, Outbox, fill

DTYPES = ("float32", "bfloat16", "bool", "int64")


def block(name: str, whole: Tensor, begin: int, end: int) -> Block:
    """Rows of a tensor."""
    rest = tuple(whole.shape[1:])
    return Block(
        name,
        str(whole.dtype).removeprefix("torch."),
        whole.element_size(),
        tuple(whole.shape),
        (begin, *(0 for _ in rest)),
        (end - begin, *rest),
    )


def rows(name: str, whole: Tensor, source: int, target: int, begin: int, end: int, at: int) -> Transfer:
    """Some of them on their way."""
    part = block(name, whole, begin, end)
    size = (end - begin) * whole[0].nbytes
    return Transfer(name, part.dtype, source, target, part.offsets, part.sizes, size, at)


def tensors() -> dict[str, Tensor]:
    """Of every kind, five rows of three."""
    values = torch.arange(15).view(5, 3)
    return {name: (values * 7 % 5).to(getattr(torch, name)) for name in DTYPES}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("far", [False, True])
def test_rows_that_another_process_lays_down_and_own_ones_make_a_whole(
    monkeypatch: pytest.MonkeyPatch, far: bool, alone: bool
) -> None:
    monkeypatch.setattr(handover, "_ALONE_UNTIL", 2**20 if alone else 0)
    values = tensors()
    given = [rows(name, whole, 7, 1, 2, 5, 64 * i) for i, (name, whole) in enumerate(values.items())]
    outbox = Outbox(given)
    laid = outbox.lay({block(name, whole, 1, 5): whole[1:] for name, whole in values.items()}, [1] * far)
    if far:
        laid = Laid(None, laid.far)  # of another machine
    kept = [rows(name, whole, 1, 1, 0, 2, 0) for name, whole in values.items()]
    made = {block(name, whole, 0, 5): torch.zeros_like(whole) for name, whole in values.items()}
    own = {block(name, whole, 0, 2): whole[:2].clone() for name, whole in values.items()}
    fill(made, [*given, *kept], {7: laid}, own)
    outbox.close()
    assert all(torch.equal(made[each], values[each.name]) for each in made)


def test_a_process_may_hold_several_boxes_of_a_tensor() -> None:
    """Rows 0 and 3 to 4 here, 1 and 2 with another; rows 3 and 1 are wanted, row by row."""
    whole = tensors()["float32"]
    here = {block("w", whole, a, b): whole[a:b] for a, b in ((0, 1), (3, 5))}
    there = {block("w", whole, 1, 3): whole[1:3]}
    outbox = Outbox([rows("w", whole, 7, 1, 1, 2, 0)])
    laid = outbox.lay(there)
    made = {block("w", whole, a, a + 1): torch.zeros(1, 3) for a in (1, 3)}
    fill(made, [*outbox.transfers, rows("w", whole, 1, 1, 3, 4, 0)], {7: laid}, here)
    outbox.close()
    assert all(torch.equal(tensor, whole[each.offsets[0]][None]) for each, tensor in made.items())
    with pytest.raises(RuntimeError, match="no block here has the entries from \\(2, 0\\) on"):
        fill(made, [rows("w", whole, 1, 1, 2, 3, 0)], {}, there)


@pytest.mark.skipif(sys.platform != "linux", reason="needs process_vm_readv")
@pytest.mark.parametrize("known", [True, False])
def test_who_can_read_here_takes_parts_from_where_they_lie(known: bool) -> None:
    """Rows lie one behind the other and are shown; of columns a copy is shown, made before where one knows.
    Taker 1 reads, for taker 2 its part is laid down."""
    values = tensors()
    held = {block(name, whole, 0, 5): whole for name, whole in values.items()}
    whole = values["float32"]
    columns = Transfer("float32", "float32", 7, 1, (0, 1), (5, 2), 40, 0)
    given = [rows("bfloat16", values["bfloat16"], 7, 1, 1, 3, 64), columns]
    given.append(rows("int64", values["int64"], 7, 2, 2, 4, 128))
    outbox = Outbox(given, {1}, held if known else None)
    assert [each.target for each in outbox.transfers] == [2]
    laid = outbox.lay(held)
    assert laid.near[1][0] == values["bfloat16"][1:].data_ptr()
    made = {block(name, each, 0, 5): torch.zeros_like(each) for name, each in values.items()}
    fill(made, given[:2], {7: laid.to(1)}, {})
    fill(made, given[2:], {7: laid.to(2)}, {})
    outbox.close()
    found = {each.name: tensor for each, tensor in made.items()}
    assert torch.equal(found["float32"], torch.cat([torch.zeros(5, 1), whole[:, 1:]], 1))
    for name, begin, end in (("bfloat16", 1, 3), ("int64", 2, 4)):
        assert torch.equal(found[name][begin:end], values[name][begin:end])
        assert not found[name][:begin].any()
        assert not found[name][end:].any()


def test_what_stays_where_it_is_is_not_copied() -> None:
    values = tensors()
    held: Mapping[Block, Tensor] = {block(name, whole, 0, 5): whole for name, whole in values.items()}
    before = {name: whole.data_ptr() for name, whole in values.items()}
    fill(held, [rows(name, whole, 3, 3, 0, 5, 0) for name, whole in values.items()], {}, held)
    assert {name: whole.data_ptr() for name, whole in values.items()} == before


def test_a_process_opens_what_another_one_has_laid_down() -> None:
    whole = tensors()["float32"]
    transfer = rows("w", whole, 0, 1, 0, 5, 0)
    outbox = Outbox([transfer])
    laid = outbox.lay({block("w", whole, 0, 5): whole})
    program = (
        "import pickle, sys, torch\n"
        "from rlinf_core.comm.handover import fill\n"
        "block, transfer, laid = pickle.load(sys.stdin.buffer)\n"
        "made = {block: torch.zeros(block.shape)}\n"
        "fill(made, [transfer], {0: laid}, {})\n"
        "print(made[block].tolist())\n"
    )
    told = pickle.dumps((block("w", whole, 0, 5), transfer, laid))
    done = subprocess.run([sys.executable, "-c", program], input=told, capture_output=True, timeout=120)
    outbox.close()
    assert done.stdout.decode().strip() == str(whole.tolist()), done.stderr.decode()
