"""A run that needs more memory than any machine has."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_a_model_that_fits_nowhere_ends_the_run_with_one_message(
    command: Any, engine: str, tmp_path: Any
) -> None:
    done = command(
        *("train", f"--engine={engine}", "--ranks=1", f"--output={tmp_path / 'run'}", "trackers=[]"),
        *("--simulator=gymnasium", "simulator.id=InvertedPendulum-v5", "--model=mlp_policy"),
        *("model.hidden=[30000000,30000000]", "train.steps=1", "train.prompts_per_step=2"),
    )
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    first, _, rest = done.error.partition("\n")
    assert "ran out of memory" in first
    assert "the process holds" in first
    assert len(rest.splitlines()) == 4, done.error
