"""What changes hands between layouts, hand-counted and over random ones that are carried out."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from rlinf_core.api.resizing import Block, Transfer
from rlinf_core.errors import RlinfError
from rlinf_core.schedule.elastic import Moves, plan_moves

ITEMSIZES = {"float32": 4, "bfloat16": 2, "bool": 1, "int64": 8}
Memory = dict[int, dict[Block, NDArray[np.int64]]]


def rows(name: str, count: int, begin: int, end: int, dtype: str = "float32") -> Block:
    """Rows of a tensor that has two columns."""
    return Block(name, dtype, ITEMSIZES[dtype], (count, 2), (begin, 0), (end - begin, 2))


def test_a_second_rank_takes_its_half_and_nothing_else_moves() -> None:
    found = plan_moves({0: [rows("w", 5, 0, 5)]}, {0: [rows("w", 5, 0, 3)], 1: [rows("w", 5, 3, 5)]})
    assert found.transfers == (Transfer("w", "float32", 0, 1, (3, 0), (2, 2), 16),)
    assert found.kept == (Transfer("w", "float32", 0, 0, (0, 0), (3, 2), 24, begin=0),)


def test_a_rank_that_leaves_gives_what_it_had_to_the_one_that_stays() -> None:
    found = plan_moves({0: [rows("w", 5, 0, 3)], 7: [rows("w", 5, 3, 5)]}, {0: [rows("w", 5, 0, 5)]})
    assert found.transfers == (Transfer("w", "float32", 7, 0, (3, 0), (2, 2), 16),)


def test_replicas_share_the_work_of_giving() -> None:
    whole = [rows("a", 4, 0, 4), rows("b", 4, 0, 4)]
    found = plan_moves({0: whole, 1: whole}, {0: whole, 1: whole, 2: whole})
    assert [(each.source, each.target) for each in found.transfers] == [(0, 2), (1, 2)]
    assert found.moved_bytes == 2 * 4 * 2 * 4


def test_replicas_that_leave_move_nothing() -> None:
    whole = [rows("a", 4, 0, 4)]
    assert plan_moves({0: whole, 1: whole}, {1: whole}).transfers == ()


def test_a_single_number_moves_whole_and_an_empty_tensor_does_not() -> None:
    step = Block("step", "float32", 4, (), (), ())
    nothing = Block("none", "float32", 4, (0, 3), (0, 0), (0, 3))
    found = plan_moves({0: [step, nothing]}, {0: [step, nothing], 1: [step, nothing]})
    assert [(each.name, each.nbytes) for each in found.transfers] == [("step", 4)]


def test_entries_that_nobody_has_are_an_error() -> None:
    with pytest.raises(RlinfError, match=r"w: nobody holds 2 entries from \(4, 0\)"):
        plan_moves({0: [rows("w", 5, 0, 4)]}, {1: [rows("w", 5, 0, 5)]})


def test_another_shape_is_another_model() -> None:
    with pytest.raises(RlinfError, match="not train the same model"):
        plan_moves({0: [rows("w", 5, 0, 5)]}, {1: [rows("w", 6, 0, 6)]})


def _cuts(draw: random.Random, size: int, parts: int) -> list[tuple[int, int]]:
    """`parts` intervals of uneven sizes, some perhaps empty."""
    ends = sorted(draw.randint(0, size) for _ in range(parts - 1))
    return list(itertools.pairwise([0, *ends, size]))


def _layout(
    draw: random.Random, tensors: dict[str, tuple[str, tuple[int, ...]]], processes: list[int]
) -> dict[int, list[Block]]:
    """Each tensor whole everywhere, or cut along a random axis, or along two."""
    layout: dict[int, list[Block]] = {process: [] for process in processes}
    for name, (dtype, shape) in tensors.items():
        boxes = [((0,) * len(shape), shape)] * len(processes)
        if shape and draw.random() < 0.8:
            axis, other = draw.randrange(len(shape)), draw.randrange(len(shape))
            rows_of = 2 if len(processes) % 2 == 0 and other != axis and draw.random() < 0.5 else 1
            first = _cuts(draw, shape[axis], len(processes) // rows_of)
            second = _cuts(draw, shape[other], rows_of)
            boxes = []
            for (begin, end), (start, stop) in itertools.product(first, second):
                offsets, sizes = [0] * len(shape), list(shape)
                if rows_of > 1:
                    offsets[other], sizes[other] = start, stop - start
                offsets[axis], sizes[axis] = begin, end - begin
                boxes.append((tuple(offsets), tuple(sizes)))
        for process, (offsets, sizes) in zip(processes, boxes, strict=True):
            layout[process].append(Block(name, dtype, ITEMSIZES[dtype], shape, offsets, sizes))
    return layout


def _filled(layout: dict[int, list[Block]], values: dict[str, NDArray[np.int64]]) -> Memory:
    def part(block: Block) -> NDArray[np.int64]:
        return values[block.name][_slices(block.offsets, block.sizes, (0,) * len(block.shape))].copy()

    return {process: {block: part(block) for block in blocks} for process, blocks in layout.items()}


def _slices(offsets: tuple[int, ...], sizes: tuple[int, ...], origin: tuple[int, ...]) -> tuple[slice, ...]:
    places = zip(offsets, sizes, origin, strict=True)
    return tuple(slice(begin - zero, begin - zero + size) for begin, size, zero in places)


def _carried_out(moves: Moves, before: Memory, after: dict[int, list[Block]]) -> Memory:
    made: Memory = {
        process: {block: np.full(block.sizes, -1, dtype=np.int64) for block in blocks}
        for process, blocks in after.items()
    }
    for each in (*moves.transfers, *moves.kept):
        source = next(
            (block, memory)
            for block, memory in before[each.source].items()
            if block.name == each.name and _within(each, block)
        )
        target = next(
            (block, memory) for block, memory in made[each.target].items() if block.name == each.name
        )
        target[1][_slices(each.offsets, each.sizes, target[0].offsets)] = source[1][
            _slices(each.offsets, each.sizes, source[0].offsets)
        ]
    return made


def _within(each: Transfer, block: Block) -> bool:
    places = zip(each.offsets, each.sizes, block.offsets, block.sizes, strict=True)
    return all(zero <= begin and begin + size <= zero + room for begin, size, zero, room in places)


@pytest.mark.parametrize("seed", range(150))
def test_any_layout_becomes_any_other_and_only_what_changes_hands_moves(seed: int) -> None:
    draw = random.Random(seed)
    shapes = [tuple(draw.randint(0, 7) for _ in range(draw.randint(0, 3))) for _ in range(6)]
    tensors = {f"t{i}": (draw.choice(list(ITEMSIZES)), shape) for i, shape in enumerate(shapes)}
    tensors["tied"] = tensors["t0"]  # two names of one tensor move like any two
    counter = itertools.count(1)
    values = {
        name: np.array([next(counter) for _ in range(int(np.prod(shape)))], dtype=np.int64).reshape(shape)
        for name, (_, shape) in tensors.items()
    }
    everyone = list(range(10))
    old = draw.sample(everyone, draw.randint(1, 6))
    new = draw.sample(everyone, draw.randint(1, 6))
    before, after = _layout(draw, tensors, old), _layout(draw, tensors, new)
    moves = plan_moves(before, after)
    made = _carried_out(moves, _filled(before, values), after)
    for process, blocks in _filled(after, values).items():
        for block, expected in blocks.items():
            np.testing.assert_array_equal(made[process][block], expected)
    assert all(each.source != each.target for each in moves.transfers)
    for process in old:  # what it gives away lies one behind the other
        places = sorted((each.begin, each.nbytes) for each in moves.given_by(process))
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(places))
    assert moves.moved_bytes == sum(_new_bytes(before.get(process, []), after[process]) for process in new)


def _new_bytes(had: list[Block], has: list[Block]) -> int:
    """By marking single entries: of what a process will have, what it does not have yet."""
    total = 0
    for block in has:
        mine = np.zeros(block.shape, dtype=bool)
        for own in had:
            if own.name == block.name:
                mine[_slices(own.offsets, own.sizes, (0,) * len(own.shape))] = True
        wanted = mine[_slices(block.offsets, block.sizes, (0,) * len(block.shape))]
        total += int((~wanted).sum()) * block.itemsize
    return total
