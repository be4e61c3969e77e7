"""Conformance checks of datasets."""

from __future__ import annotations

from rlinf_core.api import Dataset, Split
from rlinf_core.testing.subject import Subject, expect
from rlinf_core.types import Row

ROWS = 20
SPLITS: tuple[Split, ...] = ("train", "eval")


def check_datasets_length(subject: Subject) -> None:
    """Both splits have rows, and a row lies at every position."""
    for split in SPLITS:
        dataset = subject.build(split, 0)
        expect(len(dataset) > 0, f"split {split!r} is empty; raise DataError in __init__ instead")
        for index in (0, len(dataset) - 1):
            row = dataset[index]
            expect(isinstance(row, Row), f"row {index} of {split!r} is a {type(row).__name__}; return a Row")


def check_datasets_prompts(subject: Subject) -> None:
    """Prompts are texts or lists of chat messages, and not empty."""
    for row in _rows(subject.build("train", 0)):
        messages = isinstance(row.prompt, list) and all({"role", "content"} <= set(m) for m in row.prompt)
        expect(
            row.prompt and (isinstance(row.prompt, str) or messages),
            f"the prompt {row.prompt!r} is neither a text nor a list of messages with role and content",
        )


def check_datasets_images(subject: Subject) -> None:
    """Images of a row are uint8 [H, W, 3]."""
    for row in _rows(subject.build("train", 0)):
        for image in row.images:
            expect(
                image.dtype.name == "uint8" and image.ndim == 3 and image.shape[2] == 3,
                f"an image is {image.dtype} {list(image.shape)}; it must be uint8 [H, W, 3]",
            )


def check_datasets_order(subject: Subject) -> None:
    """The same config, split and seed give the same rows, in any order of access."""
    for split in SPLITS:
        first, second = subject.build(split, 7), subject.build(split, 7)
        expect(len(first) == len(second), f"two datasets of split {split!r} differ in length")
        forward = _rows(first)
        backward = [second[i] for i in reversed(range(len(forward)))][::-1]
        for index, (one, other) in enumerate(zip(forward, backward, strict=True)):
            pictures = [[image.tobytes() for image in row.images] for row in (one, other)]
            expect(
                one == other and pictures[0] == pictures[1],
                f"row {index} of {split!r} differs between two instances; derive it from (seed, index) alone",
            )


def check_datasets_fingerprint(subject: Subject) -> None:
    """The fingerprint is short, and the same for the same content, also after reading rows."""
    first, second = subject.build("train", 0), subject.build("train", 0)
    before = first.fingerprint()
    _rows(first)
    expect(isinstance(before, str) and 0 < len(before) <= 128, "fingerprint() must be a short text")
    expect(
        before == first.fingerprint() == second.fingerprint(),
        "fingerprint() of the same content differs; hash the content, not ids or times",
    )


def _rows(dataset: Dataset) -> list[Row]:
    return [dataset[i] for i in range(min(ROWS, len(dataset)))]
