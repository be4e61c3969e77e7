"""What is kept of some samples of a step, for people: tokens with their numbers, for reports to colour.

Any: JSON values throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.flows.flow import record
from rlinf_core.run.metrics import jsonable
from rlinf_core.types import Experience, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlinf_core.roles.report import Shown

SAMPLES = "samples.jsonl"  # in a run's folder
TOKENS = 2048  # kept of one step
WINDOW = 8  # about as many tokens before one may its text depend on
CUT = "\ufffd"  # what a letter decodes to while tokens of it are missing
ENDS = "∎"  # shown for a token without text, such as the end of a sequence
DIGITS = 4


def records(
    step: int,
    rows: Sequence[Experience],
    decode: Callable[[Sequence[int]], str],
    shown: Shown,
) -> list[dict[str, Any]]:
    """One a row, for `samples.jsonl` and trackers."""
    told = details(rows, decode, shown)
    return [jsonable({"step": step, **record(row), **detail}) for row, detail in zip(rows, told, strict=True)]


def details(
    rows: Sequence[Experience],
    decode: Callable[[Sequence[int]], str],
    shown: Shown,
    most: int = TOKENS,
) -> list[dict[str, Any]]:
    """Of each row: `tokens`, `logprobs` of the rollout, which tokens were `heard` from tools and not said,
    and what training `shown`; of whole responses, as long as there is room; of rows that are no text nothing.
    """
    found = []
    for row in rows:
        length = len(row.logprobs)
        detail: dict[str, Any] = {}
        if isinstance(row, Sample) and 0 < length <= most:
            most -= length
            detail["tokens"] = pieces([int(i) for i in row.response_ids], decode)
            detail["logprobs"] = rounded(row.logprobs)
            if not row.mask.all():
                detail["heard"] = np.flatnonzero(~row.mask).tolist()
            for name, values in shown.get((row.group, row.replica), {}).items():
                if len(values) == length:
                    detail[name] = rounded(np.asarray(values))
        found.append(detail)
    return found


def pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds; together they are the whole. A letter of several tokens comes with its
    last."""
    found: list[str] = []
    start, shown = 0, ""  # a token at which a letter begins, and the text since
    begins = 0  # the last such token that is far enough behind
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])
        if text.endswith(CUT) and end < len(ids):
            found.append("")
            continue
        found.append(text[len(shown) :] or ENDS)
        shown = text
        if end - start >= 2 * WINDOW:
            start, begins = begins, end
            shown = decode(ids[start:end])
        elif end - start <= WINDOW:
            begins = end
    return found


def rounded(values: NDArray[Any]) -> list[float]:
    """As short numbers."""
    return [float(f"{value:.{DIGITS}g}") for value in np.asarray(values, dtype=np.float64)]
