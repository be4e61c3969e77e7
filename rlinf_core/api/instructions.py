"""Instructions of environments as they travel and are recorded: bytes of a fixed width, as arrays are.

Axes: N environments (or any leading axes), W bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlinf_core.errors import PluginError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WIDTH = 512  # bytes; the same for all, so that decisions stack whatever their texts


def instruction_bytes(texts: Sequence[str]) -> NDArray[np.uint8]:
    """`[N, W]` UTF-8 with zeros behind it. Raises `PluginError` for a text that is too long."""
    import numpy as np

    bytes_NW = np.zeros((len(texts), WIDTH), dtype=np.uint8)
    for row_W, text in zip(bytes_NW, texts, strict=True):
        encoded = text.encode()
        if len(encoded) > WIDTH:
            raise PluginError(
                f"the simulator gives an instruction of {len(encoded)} bytes; {WIDTH} is the most: "
                f"{text[:60]!r}..."
            )
        row_W[: len(encoded)] = np.frombuffer(encoded, dtype=np.uint8)
    return bytes_NW


def instruction_texts(bytes_NW: NDArray[np.uint8]) -> list[str]:
    """What `instruction_bytes` was given, leading axes flattened."""
    flat_NW = bytes_NW.reshape(-1, bytes_NW.shape[-1])
    return [row_W.tobytes().rstrip(b"\0").decode() for row_W in flat_NW]
