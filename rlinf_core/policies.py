"""Rows of several policies: the run's own, and those that others said in the same episodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlinf_core.types import OWN, Experience, Sample


def of_policy(rows: Sequence[Experience], name: str) -> list[Experience]:
    """What this policy said in these episodes; where it said nothing there is no row."""
    if name == OWN:
        return list(rows)
    return [row.others[name] for row in rows if isinstance(row, Sample) and name in row.others]


def of_all(rows: Iterable[Experience]) -> list[Experience]:
    """The rows, each with those of others behind it."""
    return [each for row in rows for each in (row, *(row.others.values() if isinstance(row, Sample) else ()))]


def other_names(rows: Iterable[Experience]) -> list[str]:
    """Of the policies beside the run's own that said something."""
    return sorted({name for row in rows if isinstance(row, Sample) for name in row.others})
