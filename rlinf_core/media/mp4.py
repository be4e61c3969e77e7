"""Videos as MP4 files (H.264), through PyAV. Axes: T frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.errors import DataError
from rlinf_core.optional import require

if TYPE_CHECKING:
    from rlinf_core.types import Picture

CODEC, PIXELS = "h264", "yuv420p"  # what browsers and LeRobot play; colours are kept at half the size
_QUALITY = "18"  # of x264: lower is better and larger; 18 looks like the original


def write_mp4(path: Path, frames: Iterable[Picture], fps: int, *, keyframe_every: int = 0) -> None:
    """Pictures of one even size as a video. Raises `DataError` for an odd size, and without a picture.

    `keyframe_every` frames there is one that needs no other, for those who jump to a time; 0 = as x264 likes.
    """
    av = require("av", "av", f"writing {path}")
    options = {"crf": _QUALITY, "preset": "fast"}
    if keyframe_every:
        options["g"] = str(keyframe_every)
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream: Any = None  # Any: PyAV's
        for picture in frames:
            if stream is None:
                stream = _stream(container, picture, fps, options, path)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")))
        if stream is None:
            raise DataError(f"{path}: a video needs at least one frame")
        container.mux(stream.encode(None))


def read_mp4(path: Path) -> Iterator[Picture]:
    """Every frame, in order. Raises `DataError`."""
    av = require("av", "av", f"reading {path}")
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, IndexError) as err:
        raise DataError(f"{path} cannot be read as a video: {err}") from err


def _stream(container: Any, picture: Picture, fps: int, options: dict[str, str], path: Path) -> Any:
    height, width = picture.shape[:2]
    if height % 2 or width % 2:
        raise DataError(f"{path}: pictures of {height} x {width}: both must be even in a video")
    stream = container.add_stream("libx264", rate=Fraction(fps), options=options)
    stream.height, stream.width, stream.pix_fmt = height, width, PIXELS
    stream.thread_count = 1  # the same file wherever it is made
    return stream
