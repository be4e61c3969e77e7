"""Pictures of coloured blocks, drawn with numpy from a layout."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rlinf_core.types import Picture

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 50, 50),
    "green": (60, 180, 70),
    "blue": (60, 90, 220),
    "yellow": (230, 200, 50),
}
BACKGROUND = 235
Cell = tuple[int, int]  # row and column, from above and from the left


def draw_blocks(layout: Mapping[Cell, str], grid: int, pixels: int, rng: random.Random) -> Picture:
    """A square picture of a block in each cell of the layout, somewhere within it."""
    picture = np.full((pixels, pixels, 3), BACKGROUND, np.uint8)
    room = pixels // grid
    side = 3 * room // 4
    for (row, column), colour in layout.items():
        top = row * room + rng.randint(0, room - side)
        left = column * room + rng.randint(0, room - side)
        picture[top : top + side, left : left + side] = COLOURS[colour]
    return picture


def cells(grid: int, count: int, rng: random.Random) -> list[Cell]:
    """Different cells, drawn at random."""
    return [divmod(number, grid) for number in rng.sample(range(grid * grid), count)]


def describe(layout: Mapping[Cell, str]) -> str:
    """The layout as text, the same for equal ones."""
    return " ".join(f"{row}{column}{colour}" for (row, column), colour in sorted(layout.items()))
