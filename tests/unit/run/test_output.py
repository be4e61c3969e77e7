"""Which folders a new run may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.run.output import refuse_used


def test_what_a_failed_start_left_is_no_obstacle_and_a_step_is(tmp_path: Path) -> None:
    for name in ("config.yaml", "plan.yaml"):
        (tmp_path / name).touch()
    refuse_used(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="not empty"):
        refuse_used(tmp_path)
