"""Groups of environments start their episodes side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlinf_core.api import Observation

sys.path.insert(0, str(Path(__file__).parent))
import line_environments


@pytest.mark.parametrize("restarts", [False, True])
def test_groups_whose_simulators_work_by_themselves_start_side_by_side(
    monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """Both are told to start before the first is waited for, and the episodes are those of simulators that
    work when they are called."""
    told: list[tuple[str, int]] = []

    class Apart(line_environments.Line):
        concurrent = True

        def begin(self, seeds: Mapping[int, int]) -> None:
            told.append(("begin", self.seed))
            super().begin(seeds)

        def begun(self) -> Observation:
            told.append(("begun", self.seed))
            return super().begun()

    expected = line_environments.episodes(
        line_environments.worker(monkeypatch, num_envs=4, groups=2, restarts=restarts), 0, 1, 2, 0, 1
    )
    monkeypatch.setattr(line_environments, "Line", Apart)
    made = line_environments.worker(monkeypatch, num_envs=4, groups=2, restarts=restarts)
    rows = line_environments.episodes(made, 0, 1, 2, 0, 1)
    assert told[:3] == [("begin", 0), ("begin", 1), ("begun", 0)]
    assert sorted((row.group, row.length, row.reward) for row in rows) == sorted(
        (row.group, row.length, row.reward) for row in expected
    )
