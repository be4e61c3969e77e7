"""Datasets of LeRobot: written in format v2.1, read in v2.0, v2.1 and v3.0.

Format: https://github.com/huggingface/lerobot (one Parquet file an episode or many; videos or PNG).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.demos.frames import Columns, Frames, to_frames, to_trajectory
from rlinf_core.demos.layout import (
    CHUNK,
    DATA,
    EPISODES,
    INFO,
    LISTS,
    NEWER,
    STATISTICS,
    TASKS,
    VERSION,
    VIDEO,
    Features,
    Images,
    features_of,
    info_of,
    read_info,
    read_lines,
    write_json,
)
from rlinf_core.demos.reading import read_newer, read_older
from rlinf_core.demos.statistics import statistics
from rlinf_core.demos.tables import write_table
from rlinf_core.errors import DataError
from rlinf_core.media.mp4 import write_mp4
from rlinf_core.types import Trajectory

_KEYFRAMES = 2  # every second frame can be read without the others, as in LeRobot's own videos


def write_dataset(
    folder: Path, episodes: Iterable[Trajectory], *, fps: int, robot: str, images: Images = "png"
) -> None:
    """Write episodes of one action a decision, one after the other as they come.

    `images="png"` keeps every pixel as it is, `"video"` is some ten times smaller. Raises `DataError` for a
    folder that is not empty, no episode, or episodes that show different things; nothing is left then.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "not empty" if folder.is_dir() else "a file"
        raise DataError(f"{folder} is {what}; name another folder for the dataset")
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    writer = _Writer(folder, fps, images)
    try:
        for episode in episodes:
            writer.add(to_frames(episode))
        if not writer.features:
            raise DataError(f"{folder}: there is no episode to write")
    except BaseException:
        shutil.rmtree(folder)
        raise
    write_json(folder / INFO, info_of(writer.features, *writer.totals, fps, robot))


def append_to_dataset(folder: Path, episodes: Iterable[Trajectory]) -> None:
    """Add episodes to a dataset as `write_dataset` makes it: as many frames a second, pictures kept alike.

    Raises `DataError` for a folder that holds none, and for episodes that show or do something of another
    shape. Whatever fails leaves the dataset as it was.
    """
    info = read_info(folder)
    writer = _Writer.after(folder, info)
    lists = {folder / name: (folder / name).read_bytes() for name in LISTS if (folder / name).exists()}
    try:
        for episode in episodes:
            writer.add(to_frames(episode))
        told = info_of(writer.features, *writer.totals, info["fps"], info.get("robot_type") or "")
        write_json(folder / INFO, info | told)
    except BaseException:
        writer.remove_added()
        for path in (folder / name for name in LISTS):
            path.write_bytes(lists[path]) if path in lists else path.unlink(missing_ok=True)
        raise


def episodes_of(folder: Path) -> int:
    """How many episodes a dataset has to which others can be added. Raises `DataError`."""
    return _Writer.after(folder, read_info(folder)).totals[0]


def read_dataset(folder: Path) -> list[Trajectory]:
    """Every episode, in order, with `actions` `[T, 1, A]` (`[T]` if discrete). Raises `DataError`.

    Where nothing is said of success, episodes count as demonstrations that succeeded.
    """
    info = read_info(folder)
    read = read_newer if info["codebase_version"] in NEWER else read_older
    episodes = [to_trajectory(frames, number) for number, frames in enumerate(read(folder, info))]
    if not episodes:
        raise DataError(f"dataset {folder} has no episode")
    return episodes


class _Writer:
    def __init__(self, folder: Path, fps: int, images: Images) -> None:
        self.features: Features = {}
        self._folder = folder
        self._fps = fps
        self._images = images
        self._episodes = self._frames = 0
        self._tasks: dict[str, int] = {}
        self._added: list[Path] = []

    @classmethod
    def after(cls, folder: Path, info: dict[str, Any]) -> _Writer:
        """Goes on where a dataset ends. Raises `DataError` for one whose files lie elsewhere."""
        images: Images = "video" if any(map(_is_video, info["features"].values())) else "png"
        places = {"codebase_version": VERSION, "chunks_size": CHUNK, "data_path": DATA}
        places |= {"video_path": VIDEO} if images == "video" else {}
        other = next((f"{name} {info.get(name)!r}" for name in places if info.get(name) != places[name]), "")
        if other:
            raise DataError(
                f"dataset {folder} has the {other}, and episodes are added where that is as rlinf writes it; "
                "record into a folder of its own"
            )
        writer = cls(folder, info["fps"], images)
        writer.features = info["features"]
        listed = read_lines(folder / EPISODES)
        writer._episodes, writer._frames = len(listed), sum(int(line["length"]) for line in listed)
        tasks = read_lines(folder / TASKS)
        writer._tasks = {str(line["task"]): int(line["task_index"]) for line in tasks}
        return writer

    @property
    def totals(self) -> tuple[int, int, int]:
        """Episodes, frames and tasks so far."""
        return self._episodes, self._frames, len(self._tasks)

    def add(self, episode: Frames) -> None:
        number, columns = self._episodes, episode.columns
        if not episode.length:
            raise DataError(f"episode {number} has no frame")
        features = features_of(columns, self._images, self._fps)
        self.features = self.features or features
        shown, before = _shapes(features), _shapes(self.features)
        if shown != before:
            raise DataError(f"episode {number} has {shown}; those before have {before}")
        whole = columns | self._times(episode)
        place: dict[str, Any] = {"episode_chunk": number // CHUNK, "episode_index": number}
        self._added.append(self._folder / DATA.format(**place))
        write_table(self._added[-1], whole, features)
        for name in columns:
            if features[name]["dtype"] == "video":
                path = self._folder / VIDEO.format(video_key=name, **place)
                self._added.append(path)
                write_mp4(path, columns[name], self._fps, keyframe_every=_KEYFRAMES)
        told = {"tasks": list(dict.fromkeys(episode.tasks)), "length": episode.length}
        self._log(EPISODES, {"episode_index": number, **told})
        self._log(STATISTICS, {"episode_index": number, "stats": statistics(whole)})
        self._episodes += 1
        self._frames += episode.length

    def remove_added(self) -> None:
        """The files of all episodes that were added."""
        for path in self._added:
            path.unlink(missing_ok=True)

    def _times(self, episode: Frames) -> Columns:
        for task in dict.fromkeys(episode.tasks):
            if task not in self._tasks:
                self._tasks[task] = len(self._tasks)
                self._log(TASKS, {"task_index": self._tasks[task], "task": task})
        frame = np.arange(episode.length)
        return {
            "timestamp": (frame / self._fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full_like(frame, self._episodes),
            "index": frame + self._frames,
            "task_index": np.array([self._tasks[task] for task in episode.tasks]),
        }

    def _log(self, name: str, line: dict[str, Any]) -> None:
        write_json(self._folder / name, line, append=True)


def _shapes(features: Features) -> str:
    return ", ".join(
        f"{name} {feature['dtype']} {list(feature['shape'])}" for name, feature in sorted(features.items())
    )


def _is_video(feature: Mapping[str, Any]) -> bool:
    return bool(feature["dtype"] == "video")
