"""Single pictures as PNG bytes, which lose nothing."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from rlinf_core.errors import DataError
from rlinf_core.optional import require

if TYPE_CHECKING:
    from rlinf_core.types import Picture


def encode_png(picture: Picture) -> bytes:
    """`[H, W, 3]` as a PNG file's content."""
    image = require("PIL.Image", "pillow", "writing pictures")
    buffer = io.BytesIO()
    image.fromarray(picture).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def decode_picture(content: bytes, name: str) -> Picture:
    """`[H, W, 3]` of a picture file's content (PNG, JPEG); raises `DataError` with its name."""
    image = require("PIL.Image", "pillow", "reading pictures")
    try:
        with image.open(io.BytesIO(content)) as opened:
            return np.asarray(opened.convert("RGB"), dtype=np.uint8)
    except OSError as err:  # pillow's own errors derive from it
        raise DataError(f"{name} cannot be read as a picture: {err}") from err
