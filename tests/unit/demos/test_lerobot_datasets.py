"""Datasets of LeRobot: what is written is what LeRobot's format says, and comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.api.instructions import instruction_bytes, instruction_texts
from rlinf_core.demos import read_dataset, write_dataset
from rlinf_core.errors import DataError
from rlinf_core.media.mp4 import write_mp4
from rlinf_core.types import Trajectory

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def episode(length: int, *, task: str = "lift it", seed: int = 0, **changed: Any) -> Trajectory:
    """Of a hand that moves a white square to the right over grey noise, 2 pixels a frame."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 60, (length, 16, 32, 1), dtype=np.uint8).repeat(3, axis=3)
    for frame, picture in enumerate(pictures):
        picture[4:12, 2 * frame : 2 * frame + 8] = 255
    fields: dict[str, Any] = {
        "group": 0,
        "replica": 0,
        "seed": 0,
        "mask": np.ones(length, dtype=bool),
        "logprobs": np.zeros(length, dtype=np.float32),
        "weight_version": 0,
        "reward": -1.0 * length,
        "step_rewards": np.full(length, -1.0, dtype=np.float32),
        "observations": {
            "state": random.normal(size=(length, 3)).astype(np.float32),
            "images/main": pictures,
            "instruction": instruction_bytes([task] * length),
        },
        "actions": random.normal(size=(length, 1, 2)).astype(np.float32),
        "success": True,
    }
    return Trajectory(**(fields | changed))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, list[Trajectory]]:
    """A dataset of two episodes, the second cut short by a time limit."""
    late = episode(2, task="push it", seed=1, success=False, truncated=True, finish="length")
    episodes = [episode(3), late]
    write_dataset(tmp_path / "set", iter(episodes), fps=10, robot="arm")
    return tmp_path / "set", episodes


def test_episodes_come_back_to_the_last_bit(two: tuple[Path, list[Trajectory]]) -> None:
    folder, written = two
    read = read_dataset(folder)
    assert [row.group for row in read] == [0, 1]
    for before, after in zip(written, read, strict=True):
        assert set(after.observations) == set(before.observations)
        for name, array in before.observations.items():
            np.testing.assert_array_equal(after.observations[name], array)
            assert after.observations[name].dtype == array.dtype
        np.testing.assert_array_equal(after.actions, before.actions)
        np.testing.assert_array_equal(after.step_rewards, before.step_rewards)
        assert (after.success, after.truncated, after.finish) == (
            before.success,
            before.truncated,
            before.finish,
        )
        assert (after.reward, bool(after.mask.all()), after.length) == (before.reward, True, before.length)


def test_a_dataset_has_the_files_and_numbers_of_the_format(two: tuple[Path, list[Trajectory]]) -> None:
    folder = two[0]
    info = json.loads((folder / "meta/info.json").read_text())
    counts = ("total_episodes", "total_frames", "total_tasks", "total_videos", "total_chunks", "fps")
    assert [info[name] for name in counts] == [2, 5, 2, 0, 1, 10]
    assert (info["codebase_version"], info["splits"]) == ("v2.1", {"train": "0:2"})
    assert info["features"]["action"] == {"dtype": "float32", "shape": [2], "names": None}
    assert info["features"]["observation.images.main"]["shape"] == [16, 32, 3]
    assert read_lines(folder / "meta/tasks.jsonl")[1] == {"task_index": 1, "task": "push it"}
    assert read_lines(folder / "meta/episodes.jsonl")[0] == {
        "episode_index": 0,
        "tasks": ["lift it"],
        "length": 3,
    }
    table = parquet.read_table(folder / "data/chunk-000/episode_000001.parquet")
    assert table["index"].to_pylist() == [3, 4]
    assert table["frame_index"].to_pylist() == [0, 1]
    assert table["episode_index"].to_pylist() == [1, 1]
    assert table["task_index"].to_pylist() == [1, 1]
    assert table["timestamp"].to_pylist() == pytest.approx([0.0, 0.1])
    assert table["next.done"].to_pylist() == [False, True]
    assert table["next.success"].to_pylist() == [False, False]
    assert table["next.reward"].to_pylist() == [-1.0, -1.0]
    assert table["action"].type == arrow.list_(arrow.float32(), 2)
    assert table["observation.images.main"].to_pylist()[1]["path"] == "frame_000001.png"
    described = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert described["observation.images.main"] == {"_type": "Image"}


def test_statistics_are_of_the_frames_of_an_episode(tmp_path: Path) -> None:
    pictures = np.zeros((2, 2, 2, 3), dtype=np.uint8)
    pictures[0, ..., 0] = 255  # half of all red values
    shown = {"state": np.array([[1.0, 0.0], [3.0, 0.0]], dtype=np.float32), "images/main": pictures}
    write_dataset(tmp_path / "set", [episode(2, observations=shown)], fps=5, robot="arm")
    (line,) = read_lines(tmp_path / "set/meta/episodes_stats.jsonl")
    found = line["stats"]
    state = {"min": [1, 0], "max": [3, 0], "mean": [2, 0], "std": [1, 0], "count": [2]}
    assert found["observation.state"] == state
    assert found["observation.images.main"]["mean"] == [[[0.5]], [[0.0]], [[0.0]]]
    assert found["observation.images.main"]["std"] == [[[0.5]], [[0.0]], [[0.0]]]
    assert found["next.success"]["max"] == [True]
    assert found["index"]["max"] == [1]


def test_a_video_shows_every_frame_almost_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("av")
    written = [episode(length, seed=length) for length in (7, 4)]
    write_dataset(tmp_path / "set", written, fps=10, robot="arm", images="video")
    assert (tmp_path / "set/videos/chunk-000/observation.images.main/episode_000001.mp4").is_file()
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (info["total_videos"], info["features"]["observation.images.main"]["dtype"]) == (2, "video")
    for before, after in zip(written, read_dataset(tmp_path / "set"), strict=True):
        expected, found = (row.observations["images/main"].astype(int) for row in (before, after))
        assert found.shape == expected.shape
        assert np.abs(found - expected).mean() < 8
        brightest = found.sum((1, 3)).argmax(1)  # somewhere on the square
        assert all(2 * t <= column < 2 * t + 8 for t, column in enumerate(brightest))


def test_discrete_actions_come_back_as_numbers(tmp_path: Path) -> None:
    rows = [episode(3, actions=np.array([2, 0, 1]), observations={"state": np.zeros((3, 1), np.float32)})]
    write_dataset(tmp_path / "set", rows, fps=10, robot="pole")
    (read,) = read_dataset(tmp_path / "set")
    assert (read.actions.tolist(), read.actions.dtype.name) == ([2, 0, 1], "int64")
    assert read.observations["state"].shape == (3, 1)
    assert "instruction" not in read.observations


def test_without_success_an_episode_is_a_demonstration(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", [episode(3, success=False)], fps=10, robot="arm")
    path = tmp_path / "set/data/chunk-000/episode_000000.parquet"
    left = [f"next.{name}" for name in ("success", "reward", "done", "truncated")]
    parquet.write_table(parquet.read_table(path).drop_columns(left), path)
    (read,) = read_dataset(tmp_path / "set")
    assert (read.success, read.reward) == (True, None)
    assert read.step_rewards is None


def as_newer(old: Path, new: Path, extra: dict[str, Any]) -> None:
    """The same dataset as format v3.0 keeps it: all episodes in one file, tasks and episodes as tables."""
    tables = [parquet.read_table(path) for path in sorted(old.glob("data/*/*.parquet"))]
    info = json.loads((old / "meta/info.json").read_text())
    info |= {
        "codebase_version": "v3.0",
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    lines = read_lines(old / "meta/episodes.jsonl")
    episodes = {name: [line[name] for line in lines] for name in lines[0]} | extra
    tasks = read_lines(old / "meta/tasks.jsonl")
    texts = [line["task"] for line in tasks]
    for name, table in {
        "data/chunk-000/file-000": arrow.concat_tables(tables),
        "meta/episodes/chunk-000/file-000": arrow.table(episodes),
        "meta/tasks": arrow.table(
            {"task_index": [line["task_index"] for line in tasks], "__index_level_0__": texts}
        ),
    }.items():
        path = new / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path)
    (new / "meta/info.json").write_text(json.dumps(info))


def test_the_newer_format_of_many_episodes_a_file_is_read(
    two: tuple[Path, list[Trajectory]], tmp_path: Path
) -> None:
    folder, written = two
    as_newer(folder, tmp_path / "new", {})
    read = read_dataset(tmp_path / "new")
    assert [row.success for row in read] == [True, False]
    assert instruction_texts(read[1].observations["instruction"]) == ["push it"] * 2
    for before, after in zip(written, read, strict=True):
        np.testing.assert_array_equal(after.actions, before.actions)
        np.testing.assert_array_equal(after.observations["images/main"], before.observations["images/main"])


def test_the_newer_format_keeps_many_episodes_in_one_video(tmp_path: Path) -> None:
    pytest.importorskip("av")
    written = [episode(3), episode(4, seed=1)]
    write_dataset(tmp_path / "old", written, fps=10, robot="arm", images="video")
    camera = "videos/observation.images.main"
    places = {"chunk_index": [0, 0], "file_index": [0, 0], "from_timestamp": [0.0, 0.3]}
    as_newer(tmp_path / "old", tmp_path / "new", {f"{camera}/{name}": at for name, at in places.items()})
    pictures = np.concatenate([row.observations["images/main"] for row in written])
    write_mp4(tmp_path / "new" / camera / "chunk-000/file-000.mp4", pictures, 10)
    first, second = (row.observations["images/main"].astype(int) for row in read_dataset(tmp_path / "new"))
    assert first.shape[0] == 3
    assert np.abs(first - pictures[:3]).mean() < 8
    assert np.abs(second - pictures[3:]).mean() < 8


def change_info(folder: Path, **changed: Any) -> None:
    path = folder / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_what_cannot_be_read_is_named(two: tuple[Path, list[Trajectory]], tmp_path: Path) -> None:
    folder, _ = two
    with pytest.raises(DataError, match=r"nowhere is no LeRobot dataset: there is no such folder"):
        read_dataset(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"is no LeRobot dataset: it has no meta/info.json"):
        read_dataset(tmp_path)
    (folder / "data/chunk-000/episode_000001.parquet").unlink()
    with pytest.raises(DataError, match=r"is incomplete: data/chunk-000/episode_000001.parquet is missing"):
        read_dataset(folder)
    change_info(folder, codebase_version="v1.6")
    with pytest.raises(DataError, match=r"has the version 'v1.6'; v2.0, v2.1, v3.0 can be read"):
        read_dataset(folder)


def test_a_damaged_file_is_named(two: tuple[Path, list[Trajectory]]) -> None:
    folder, _ = two
    path = folder / "data/chunk-000/episode_000000.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.drop_columns(["action"]), path)
    with pytest.raises(DataError, match=r"episode_000000.parquet has no column 'action'"):
        read_dataset(folder)
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"episode_000000.parquet cannot be read as Parquet"):
        read_dataset(folder)
    (folder / "meta/tasks.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"tasks.jsonl, line 1: not JSON"):
        read_dataset(folder)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there is no episode to write"),
        ([episode(2, actions=np.zeros((2, 4, 2), np.float32))], "4 actions a decision"),
        (
            [episode(2), episode(2, observations={})],
            r"episode 1 has action .*those before have .*observation.state",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, rows: list[Trajectory], message: str) -> None:
    with pytest.raises(DataError, match=message):
        write_dataset(tmp_path / "set", rows, fps=10, robot="arm")


def test_a_folder_in_use_is_refused(two: tuple[Path, list[Trajectory]]) -> None:
    folder, written = two
    with pytest.raises(DataError, match="is not empty; name another folder"):
        write_dataset(folder, written, fps=10, robot="arm")
