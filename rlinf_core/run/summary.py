"""What is said of a run when it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class RunSummary:
    """How a run ended. `first` and `last` are the first and the last evaluation."""

    output: Path
    step: int
    seconds: float
    interrupted: bool = False
    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    exported: Path | None = None
    counts: dict[str, float] = field(default_factory=dict)  # of what the flow counts
