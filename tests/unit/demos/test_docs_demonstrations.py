"""What the page of demonstrations shows of datasets is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.demos import read_dataset, write_dataset
from rlinf_core.demos.layout import NEWER, OLDER, VERSION
from rlinf_core.types import Trajectory

pytest.importorskip("pyarrow")
pytest.importorskip("av")
PAGE = (Path(__file__).resolve().parents[3] / "docs/demonstrations.md").read_text()


def row(success: bool) -> Trajectory:
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(2, dtype=bool),
        logprobs=np.zeros(2, dtype=np.float32),
        weight_version=0,
        step_rewards=np.ones(2, dtype=np.float32),
        observations={"images/main": np.zeros((2, 16, 16, 3), dtype=np.uint8)},
        actions=np.zeros((2, 1, 2), dtype=np.float32),
        success=success,
    )


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "demos/reach", [row(True), row(False), row(True)], fps=20, robot="sawyer")
    (example,) = re.findall(r"```python\n(.*?read_dataset\(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert [episode.success for episode in read_dataset(tmp_path / "demos/best")] == [True, True]
    places = [place.replace("main", "CAMERA") for place in re.findall(r"^(\w+/\S+)", PAGE, re.MULTILINE)]
    assert len(places) == 6
    for place in places:
        assert (tmp_path / "demos/best" / place.replace("CAMERA", "main")).is_file(), place


def test_the_page_names_the_versions_and_columns_that_there_are(tmp_path: Path) -> None:
    assert f"written in its format {VERSION}" in PAGE.replace("\n", " ")
    assert all(version in PAGE for version in (*OLDER, *NEWER))
    parquet = pytest.importorskip("pyarrow.parquet")
    write_dataset(tmp_path / "set", [row(True)], fps=20, robot="sawyer")
    names = parquet.read_table(tmp_path / "set/data/chunk-000/episode_000000.parquet").column_names
    missing = [name for name in names if f"`{name.replace('main', 'CAMERA')}`" not in PAGE]
    assert missing == []
