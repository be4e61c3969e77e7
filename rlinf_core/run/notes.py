"""What a run says to people, kept in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rlinf_core.errors import RlinfError
from rlinf_core.run.metrics import JsonLines
from rlinf_core.run.output import SETTINGS

NOTES = "notes.jsonl"


class Notes:
    """Appends to a run's file. What is said before the run has its folder, or while the disk is full, waits
    in memory: people have read it on the terminal, and a note must not end a run."""

    def __init__(self, output: Path) -> None:
        self._folder = output
        self._waiting: list[dict[str, object]] = []

    def add(self, kind: Literal["note", "warning"], text: str, step: int | None = None) -> None:
        """Something that was said."""
        self._waiting.append({"step": step, "kind": kind, "text": text})
        if not (self._folder / SETTINGS).exists():
            return
        lines = JsonLines(self._folder / NOTES)
        while self._waiting:
            try:
                lines.write(self._waiting[0])
            except RlinfError:  # no room now
                return
            del self._waiting[0]
