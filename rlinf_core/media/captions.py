"""Pictures for people: large enough to see, with lines of text below."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.optional import require

if TYPE_CHECKING:
    from rlinf_core.types import Picture

SMALLEST = 256  # pixels of the shorter side
_SIZE, _LINE, _MARGIN = 13, 17, 6  # pixels: of the letters, from line to line, around the text
_PAPER, _INK, _GOOD, _BAD = (24, 26, 30), (235, 235, 235), (110, 220, 120), (240, 150, 110)

Line = tuple[str, str]  # a text, and how it is meant: "", "good" or "bad"


def enlarged(picture: Picture) -> Picture:
    """Each pixel as a square, if the picture is small; both sides even, as videos need them."""
    factor = -(-SMALLEST // min(picture.shape[:2]))
    large = picture.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else picture
    height, width = large.shape[:2]
    return np.pad(large, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def captioned(picture: Picture, lines: Sequence[Line]) -> Picture:
    """With the lines below it; what is too long for the width is cut."""
    drawing = require("PIL.ImageDraw", "pillow", "writing on pictures")
    images = require("PIL.Image", "pillow", "writing on pictures")
    height, width = 2 * _MARGIN + _LINE * len(lines), picture.shape[1]
    strip = images.new("RGB", (width, height + height % 2), _PAPER)
    pen = drawing.Draw(strip)
    for number, (text, meaning) in enumerate(lines):
        ink = {"good": _GOOD, "bad": _BAD}.get(meaning, _INK)
        place = (_MARGIN, _MARGIN + number * _LINE)
        pen.text(place, _fitting(text, width - 2 * _MARGIN), fill=ink, font=_font())
    return np.concatenate([picture, np.asarray(strip, dtype=np.uint8)], axis=0)


def _fitting(text: str, width: int) -> str:
    font = _font()
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


@cache
def _font() -> Any:  # Any: pillow's
    return require("PIL.ImageFont", "pillow", "writing on pictures").load_default(size=_SIZE)
