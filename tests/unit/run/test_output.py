"""Which folders a new run may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.run.output import clear_failed_start, refuse_used


def test_what_a_failed_start_left_is_no_obstacle_and_a_step_is(tmp_path: Path) -> None:
    for name in ("config.yaml", "plan.yaml"):
        (tmp_path / name).touch()
    refuse_used(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="not empty"):
        refuse_used(tmp_path)


def test_a_start_that_fails_before_its_first_record_takes_the_files_of_trackers_along(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "tracker").mkdir()
    for name in ("config.yaml", "tracker/events", "trace.json"):
        (tmp_path / name).touch()
    (tmp_path / "logs" / "device0.log").write_text("out of memory")
    clear_failed_start(tmp_path, made=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.yaml", "logs"]
    refuse_used(tmp_path)
    for name in ("trace.json", "metrics.jsonl"):
        (tmp_path / name).touch()
    clear_failed_start(tmp_path, made=True)
    assert (tmp_path / "trace.json").exists()


@pytest.mark.parametrize("made", [True, False])
def test_a_start_that_fails_without_a_word_in_its_logs_leaves_no_folder_of_its_own(
    tmp_path: Path, made: bool
) -> None:
    output = tmp_path / "run"
    (output / "logs").mkdir(parents=True)
    for name in ("config.yaml", "plan.yaml", "logs/device0.log"):
        (output / name).touch()
    clear_failed_start(output, made=made)
    assert output.exists() is not made
    assert made or list(output.iterdir()) == []
