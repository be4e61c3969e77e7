"""Episodes that are added to a dataset: it is as if all had been written at once, or as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.api.instructions import instruction_bytes
from rlinf_core.demos import append_to_dataset, read_dataset, write_dataset
from rlinf_core.demos.layout import Images
from rlinf_core.demos.lerobot import episodes_of
from rlinf_core.errors import DataError
from rlinf_core.types import Trajectory

pytest.importorskip("pyarrow")


def episode(length: int, task: str, *, states: int = 3, seed: int = 0) -> Trajectory:
    random = np.random.default_rng(seed)
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(length, dtype=bool),
        logprobs=np.zeros(length, dtype=np.float32),
        weight_version=0,
        step_rewards=random.normal(size=length).astype(np.float32),
        observations={
            "state": random.normal(size=(length, states)).astype(np.float32),
            "images/main": random.integers(0, 256, (length, 16, 16, 3), dtype=np.uint8),
            "instruction": instruction_bytes([task] * length),
        },
        actions=random.normal(size=(length, 1, 2)).astype(np.float32),
        success=True,
    )


FIRST = [episode(3, "lift it"), episode(2, "push it", seed=1)]
LATER = [episode(4, "turn it", seed=2), episode(1, "lift it", seed=3)]


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", FIRST, fps=10, robot="arm")
    return tmp_path / "set"


@pytest.mark.parametrize("images", ["png", "video"])
def test_a_dataset_that_grew_is_one_that_was_written_at_once(tmp_path: Path, images: Images) -> None:
    write_dataset(tmp_path / "whole", FIRST + LATER, fps=10, robot="arm", images=images)
    write_dataset(tmp_path / "grown", FIRST, fps=10, robot="arm", images=images)
    for each in LATER:
        append_to_dataset(tmp_path / "grown", [each])
    grown, whole = content(tmp_path / "grown"), content(tmp_path / "whole")
    assert grown.keys() == whole.keys()
    assert [name for name in grown if grown[name] != whole[name]] == []
    assert episodes_of(tmp_path / "grown") == 4
    assert [len(each.actions) for each in read_dataset(tmp_path / "grown")] == [3, 2, 4, 1]


def interrupted() -> Iterator[Trajectory]:
    yield LATER[0]
    raise KeyboardInterrupt


def wider() -> Iterator[Trajectory]:
    yield LATER[0]
    yield episode(2, "lift it", states=5)


def test_what_fails_leaves_the_dataset_as_it_was(there: Path) -> None:
    before = content(there)
    with pytest.raises(KeyboardInterrupt):
        append_to_dataset(there, interrupted())
    assert content(there) == before
    with pytest.raises(DataError) as raised:
        append_to_dataset(there, wider())
    assert "episode 3 has action float32 [2], " in str(raised.value)
    assert "observation.state float32 [5]" in str(raised.value).partition("those before have")[0]
    assert "observation.state float32 [3]" in str(raised.value).partition("those before have")[2]
    assert content(there) == before


def test_pictures_of_another_size_and_states_without_pictures_are_refused(there: Path) -> None:
    small, blind = episode(2, "lift it"), episode(2, "lift it")
    small.observations["images/main"] = small.observations["images/main"][:, :8, :8]
    del blind.observations["images/main"]
    with pytest.raises(DataError, match=r"image \[8, 8, 3\].*those before have.*image \[16, 16, 3\]"):
        append_to_dataset(there, [small])
    with pytest.raises(DataError, match=r"those before have.*observation\.images\.main"):
        append_to_dataset(there, [blind])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"codebase_version": "v3.0"}, "has the codebase_version 'v3.0'"),
        (
            {"data_path": "data/{episode_index}.parquet"},
            r"has the data_path 'data/\{episode_index\}.parquet'",
        ),
        ({"chunks_size": 10}, "has the chunks_size 10"),
    ],
)
def test_a_dataset_that_is_laid_out_otherwise_is_refused(
    there: Path, changed: dict[str, Any], said: str
) -> None:
    info = json.loads((there / "meta/info.json").read_text())
    (there / "meta/info.json").write_text(json.dumps(info | changed))
    with pytest.raises(DataError, match=said):
        append_to_dataset(there, LATER)


def test_without_a_dataset_there_is_nothing_to_add_to(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is no LeRobot dataset: there is no such folder"):
        append_to_dataset(tmp_path / "nowhere", LATER)
    assert not (tmp_path / "nowhere").exists()
