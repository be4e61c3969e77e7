"""Where the files of a dataset are, and how `meta/info.json` and Parquet files describe its columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rlinf_core.demos.frames import TIMES, Columns, is_picture
from rlinf_core.errors import DataError
from rlinf_core.media.mp4 import CODEC, PIXELS

VERSION = "v2.1"  # which is written
OLDER = ("v2.0", "v2.1")  # one file an episode
NEWER = ("v3.0",)  # many episodes a file
CHUNK = 1000  # episodes a folder
DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
INFO, EPISODES, TASKS = "meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl"
STATISTICS = "meta/episodes_stats.jsonl"
LISTS = (EPISODES, TASKS, STATISTICS)  # a line for each of what there is

Images = Literal["png", "video"]
Features = dict[str, dict[str, Any]]  # Any: JSON values


def features_of(columns: Columns, images: Images, fps: int) -> Features:
    """What `info.json` says of these columns and those that every frame has."""
    found = {name: _feature(column, images, fps) for name, column in columns.items()}
    times = {name: _plain("float32" if name == "timestamp" else "int64", (1,)) for name in TIMES}
    return found | times


def _feature(column: Any, images: Images, fps: int) -> dict[str, Any]:  # Any: an array of any type
    if not is_picture(column):
        return _plain(str(column.dtype), column.shape[1:] or (1,))
    height, width = column.shape[1:3]
    feature = {"dtype": "image", "shape": [height, width, 3], "names": ["height", "width", "channels"]}
    if images == "png":
        return feature
    about = {"height": height, "width": width, "channels": 3, "codec": CODEC, "pix_fmt": PIXELS, "fps": fps}
    info = {f"video.{name}": value for name, value in about.items()}
    return feature | {"dtype": "video", "info": info | {"video.is_depth_map": False, "has_audio": False}}


def _plain(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": None}


def parquet_metadata(features: Features) -> dict[str, str]:
    """How the `datasets` library is told which columns are pictures and which have a fixed length."""
    described: dict[str, Any] = {}
    for name, feature in features.items():
        if feature["dtype"] == "image":
            described[name] = {"_type": "Image"}
        elif feature["dtype"] != "video":
            value = {"dtype": feature["dtype"], "_type": "Value"}
            (length,) = feature["shape"]
            single = {"feature": value, "length": length, "_type": "Sequence"}
            described[name] = value if length == 1 else single
    return {"huggingface": json.dumps({"info": {"features": described}})}


def info_of(
    features: Features, episodes: int, frames: int, tasks: int, fps: int, robot: str
) -> dict[str, Any]:
    """`meta/info.json` of a whole dataset."""
    videos = sum(feature["dtype"] == "video" for feature in features.values())
    return {
        "codebase_version": VERSION,
        "robot_type": robot,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "total_videos": videos * episodes,
        "total_chunks": -(-episodes // CHUNK),
        "chunks_size": CHUNK,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA,
        "video_path": VIDEO if videos else None,
        "features": features,
    }


def read_info(folder: Path) -> dict[str, Any]:
    """`meta/info.json`; raises `DataError` for a folder without, and for a version that is not known."""
    path = folder / INFO
    if not path.is_file():
        what = "it has no meta/info.json" if folder.is_dir() else "there is no such folder"
        raise DataError(f"{folder} is no LeRobot dataset: {what} (current directory: {Path.cwd()})")
    info = read_json(path)
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version not in OLDER + NEWER:
        raise DataError(
            f"dataset {folder} has the version {version!r}; {', '.join(OLDER + NEWER)} can be read: "
            "convert it with the tools of the package lerobot"
        )
    missing = [key for key in ("features", "fps", "data_path") if key not in info]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}")
    return dict(info)


def read_json(path: Path) -> Any:  # Any: a JSON value
    """A file's content; raises `DataError`."""
    return _parsed(path.read_text(), str(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """One JSON object a line; raises `DataError`."""
    if not path.is_file():
        raise DataError(f"dataset {path.parents[1]} is incomplete: {path} is missing")
    numbered = enumerate(path.read_text().splitlines(), start=1)
    return [_parsed(line, f"{path}, line {number}") for number, line in numbered if line.strip()]


def write_json(path: Path, value: Mapping[str, Any], *, append: bool = False) -> None:
    """One JSON object, alone or as one more line."""
    with path.open("a" if append else "w") as file:
        file.write(json.dumps(value, indent=None if append else 2, ensure_ascii=False) + "\n")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as err:
        raise DataError(f"{where}: not JSON: {err.msg} at column {err.colno}") from err
