"""The folder of a run whose user named none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlinf_core.config.compose import compose, with_output
from rlinf_core.config.options import Options


def test_runs_that_start_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "20261201-011652")
    config = compose(Options(algo="grpo", backend="fsdp", model="hf_lm"))
    found = []
    for _ in range(3):
        found.append(with_output(config).output)
        Path(found[-1]).mkdir(parents=True)
    first = "runs/grpo-hf_lm-20261201-011652"
    assert found == [first, f"{first}-2", f"{first}-3"]
    assert with_output(compose(Options(algo="grpo", model="hf_lm", output="mine"))).output == "mine"
