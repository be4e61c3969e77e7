"""Settings of the rewards that ship with the core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExactConfig:
    """Settings of `exact`."""

    strip: bool = True  # ignore white space around response and answer
    ignore_case: bool = False  # compare case-insensitively
    collapse_spaces: bool = False  # treat every run of white space as one space
