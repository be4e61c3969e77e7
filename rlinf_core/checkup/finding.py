"""What every part of a checkup says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["machine", "limit", "version", "plugin", "environment", "drawing"]
State = Literal["ok", "absent", "low", "broken"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` is empty where nothing is to be done."""

    part: Part
    name: str
    state: State
    detail: str
    advice: str = ""
