"""Metrics as a CSV file with one column a metric, for spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf_core.api.tracker import Tracker
from rlinf_core.builtin.trackers.config import CsvTrackerConfig

Line = dict[str, str]


class CsvTracker(Tracker):
    """Rewrites the file when a metric appears for the first time, else appends a line."""

    config: CsvTrackerConfig

    def start(self, output: Path, run_config: Mapping[str, Any], resumed_step: int) -> None:
        self._path = output / self.config.file
        self._columns = ["step"]
        if not self._path.exists():
            return
        with self._path.open(newline="") as file:
            reader = csv.DictReader(file)
            lines = [line for line in reader if int(line["step"]) <= resumed_step]
            self._columns = list(reader.fieldnames or self._columns)
        self._rewrite(lines)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        line = {"step": str(step), **{name: f"{value:.9g}" for name, value in metrics.items()}}
        new = [name for name in line if name not in self._columns]
        if not new and self._path.exists():
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerow(line)
            return
        self._columns += new
        self._rewrite([*self._read(), line])

    def _read(self) -> list[Line]:
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, lines: list[Line]) -> None:
        whole = self._path.with_suffix(".tmp")
        with whole.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(lines)
        whole.replace(self._path)
