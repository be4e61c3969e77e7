"""Reads the frames of every episode, from one file each (v2) or from files of many episodes (v3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.demos.frames import ACTION, REWARD, STATE, SUCCESS, TRUNCATED, Columns, Frames
from rlinf_core.demos.layout import EPISODES, TASKS, read_lines
from rlinf_core.demos.tables import Table
from rlinf_core.errors import DataError
from rlinf_core.media.mp4 import read_mp4

_NUMBERS = (STATE, ACTION, REWARD, SUCCESS, TRUNCATED)  # what episodes are made of, beside pictures

Info = Mapping[str, Any]  # Any: JSON values


def read_older(root: Path, info: Info) -> Iterator[Frames]:
    """Episodes in order of their numbers."""
    tasks = {int(line["task_index"]): str(line["task"]) for line in read_lines(root / TASKS)}
    listed = sorted(read_lines(root / EPISODES), key=lambda line: int(line["episode_index"]))
    for line in listed:
        number = int(line["episode_index"])
        place = {"episode_chunk": number // int(info.get("chunks_size", 1000)), "episode_index": number}
        table = Table(root / info["data_path"].format(**place), root)
        columns = _columns(table, range(table.length), info, root)
        for name in _videos(info):
            path = root / info["video_path"].format(video_key=name, **place)
            columns[name] = _stacked(_frames(path, root), table.length, path)
        yield Frames(columns, _tasks(table, range(table.length), tasks))


def read_newer(root: Path, info: Info) -> Iterator[Frames]:
    """Episodes as they follow one another in the files."""
    tasks = _task_table(root)
    places = {int(place["episode_index"]): place for place in _episode_table(root)}
    films = {name: _Film(root, name, info, places) for name in _videos(info)}
    for path in sorted((root / "data").glob("*/*.parquet")):
        table = Table(path, root)
        numbers = table.numbers("episode_index").tolist()
        for number, run in groupby(range(table.length), key=numbers.__getitem__):
            rows = list(run)
            columns = _columns(table, rows, info, root)
            for name, film in films.items():
                columns[name] = film.frames(number, len(rows))
            yield Frames(columns, _tasks(table, rows, tasks))


def _columns(table: Table, rows: Sequence[int], info: Info, root: Path) -> Columns:
    if ACTION not in table.names:
        raise DataError(f"{table.path} has no column {ACTION!r}: nothing to learn from")
    columns = {name: table.numbers(name)[list(rows)] for name in _NUMBERS if name in table.names}
    for name, feature in info["features"].items():
        if feature["dtype"] == "image":
            columns[name] = table.pictures(name, rows, root)
    return columns


def _videos(info: Info) -> list[str]:
    return [name for name, feature in info["features"].items() if feature["dtype"] == "video"]


def _tasks(table: Table, rows: Sequence[int], tasks: Mapping[int, str]) -> list[str]:
    numbers = table.numbers("task_index")[list(rows)].tolist()
    unknown = set(numbers) - set(tasks)
    if unknown:
        raise DataError(f"{table.path}: the dataset has no task {min(unknown)}; it has {sorted(tasks)}")
    return [tasks[number] for number in numbers]


def _task_table(root: Path) -> dict[int, str]:
    """Texts are the table's index, whose column has one of several names."""
    table = Table(root / "meta/tasks.parquet", root)
    (texts,) = [name for name in table.names if name != "task_index"]
    return dict(zip(table.values("task_index"), map(str, table.values(texts)), strict=True))


def _episode_table(root: Path) -> Iterator[dict[str, Any]]:
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not files:
        raise DataError(f"dataset {root} is incomplete: meta/episodes has no Parquet file")
    for path in files:
        table = Table(path, root)
        names = [name for name in table.names if name == "episode_index" or name.startswith("videos/")]
        for values in zip(*map(table.values, names), strict=True):
            yield dict(zip(names, values, strict=True))


class _Film:
    """The video files of one camera, of many episodes each, read once from beginning to end."""

    def __init__(self, root: Path, name: str, info: Info, places: Mapping[int, Mapping[str, Any]]) -> None:
        self._root, self._name, self._info, self._places = root, name, info, places
        self._path: Path | None = None
        self._reader: Iterator[NDArray[np.uint8]] = iter(())
        self._next = 0  # which frame of the file the reader gives next

    def frames(self, number: int, count: int) -> NDArray[np.uint8]:
        """Of one episode; episodes of a file come in order."""
        place = self._places.get(number, {})
        try:
            file, start = (place[f"videos/{self._name}/{what}"] for what in ("file_index", "from_timestamp"))
            chunk = place[f"videos/{self._name}/chunk_index"]
        except KeyError as err:
            raise DataError(f"dataset {self._root}: meta/episodes lacks {err} of episode {number}") from err
        where = {"video_key": self._name, "chunk_index": chunk, "file_index": file}
        path = self._root / self._info["video_path"].format(**where)
        first = round(start * self._info["fps"])
        if path != self._path or first < self._next:
            self._path, self._reader, self._next = path, _frames(path, self._root), 0
        skipped = sum(1 for _ in islice(self._reader, first - self._next))
        found = _stacked(islice(self._reader, count), count, path)
        self._next += skipped + count
        return found


def _frames(path: Path, root: Path) -> Iterator[NDArray[np.uint8]]:
    if not path.is_file():
        raise DataError(f"dataset {root} is incomplete: {path.relative_to(root)} is missing")
    return read_mp4(path)


def _stacked(frames: Iterator[NDArray[np.uint8]], count: int, path: Path) -> NDArray[np.uint8]:
    found = list(frames)
    if len(found) != count:
        raise DataError(f"{path} has {len(found)} frames where the dataset has {count}")
    return np.stack(found)
