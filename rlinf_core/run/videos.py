"""Videos and still pictures of episodes, under RUN/videos, from the films that environments leave there.

Axes: F frames, T decision steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlinf_core.media.captions import Line, captioned, enlarged
from rlinf_core.media.mp4 import write_mp4
from rlinf_core.media.png import encode_png
from rlinf_core.roles.films import FACTS, FRAMES
from rlinf_core.run.output import writing
from rlinf_core.types import EpisodeRequest, Experience, Trajectory

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig

FOLDER = "videos"
Kind = Literal["eval", "train"]
Values = Callable[[Trajectory], NDArray[np.float32]]  # [T] what the critic says of each decision


@dataclass(frozen=True)
class Video:
    """One that was written, and its last picture."""

    name: str  # such as "eval-0"
    path: Path
    still: Path


class Videos:
    """Films the first episodes of the steps that `video.every` names."""

    def __init__(self, config: RunConfig, values: Values | None) -> None:
        self._config = config.video
        self._last = config.train.steps
        self._folder = Path(config.output).absolute() / FOLDER
        self._values = values  # None for an algorithm without a critic

    def evaluation(self, step: int, requests: Iterable[list[Any]]) -> Iterator[list[Any]]:
        """The requests of the evaluation after this step, some of them to be filmed."""
        every = self._config.every
        filmed = bool(every) and (step % every == 0 or step == self._last)
        return self._marked(requests, step, "eval") if filmed else iter(requests)

    def training(self, step: int, requests: Iterable[list[Any]]) -> Iterator[list[Any]]:
        """The same of this step's training."""
        every = self._config.every
        filmed = bool(every) and self._config.train and step % every == 0
        return self._marked(requests, step, "train") if filmed else iter(requests)

    def write(self, step: int, kind: Kind, rows: Sequence[Experience]) -> list[Video]:
        """Make videos of the films of these episodes, so far as they have ended. Raises `RlinfError`."""
        films = sorted(self._of(step).glob(f"{kind}-*{FACTS}"))
        known = {(row.group, row.replica): row for row in rows if isinstance(row, Trajectory)}
        return [self._write(path, known) for path in films]

    def _of(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    def _marked(self, requests: Iterable[list[Any]], step: int, kind: Kind) -> Iterator[list[Any]]:
        number = 0
        for group in requests:
            marked = []
            for request in group:
                if number < self._config.episodes and isinstance(request, EpisodeRequest):
                    request = replace(request, film=str(self._of(step) / f"{kind}-{number}"))
                number += 1
                marked.append(request)
            yield marked

    def _write(self, path: Path, rows: dict[tuple[int, int], Trajectory]) -> Video:
        start = path.with_name(path.name.removesuffix(FACTS))
        raw = start.with_name(start.name + FRAMES)
        with np.load(path) as stored:
            film = {name: stored[name] for name in stored.files}
        frames = np.memmap(raw, np.uint8, "r", shape=tuple(film["shape"].tolist()))
        first, last = (start.with_name(f"{start.name}-{which}.png") for which in ("first", "last"))
        video = Video(start.name, start.with_suffix(".mp4"), last)
        pictures = self._pictures(frames, film, self._of_frames(film, rows))
        with writing(video.path):
            write_mp4(video.path, self._held(pictures, first, last), self._config.fps)
            path.unlink()
            raw.unlink()
        return video

    def _of_frames(
        self, film: dict[str, NDArray[Any]], rows: dict[tuple[int, int], Trajectory]
    ) -> NDArray[np.float32] | None:
        """`[F]` values, where there is a critic and the episode is among the rows."""
        row = rows.get(tuple(film["row"].tolist()))
        if row is None or self._values is None or not self._config.overlay:
            return None
        values_T = self._values(row)
        found_F: NDArray[np.float32] = values_T[:: len(values_T) // len(row.actions)][film["decisions"]]
        return found_F

    def _pictures(
        self,
        frames: NDArray[np.uint8],
        film: dict[str, NDArray[Any]],
        values_F: NDArray[np.float32] | None,
    ) -> Iterator[NDArray[np.uint8]]:
        paid_F = np.cumsum(film["rewards"])
        told = str(film["instruction"])
        for number, frame in enumerate(frames):
            picture = enlarged(np.asarray(frame))
            if not self._config.overlay:
                yield picture
                continue
            ending = str(film["ended"]) if number == len(frames) - 1 else ""
            value = None if values_F is None else float(values_F[number])
            lines = caption(number, float(paid_F[number]), value, ending)
            yield captioned(picture, [*lines, (told, "")] if told else lines)

    def _held(
        self, pictures: Iterator[NDArray[np.uint8]], first: Path, last: Path
    ) -> Iterator[NDArray[np.uint8]]:
        """The last picture for one more second; both ends are written to files."""
        shown = next(pictures)
        first.write_bytes(encode_png(shown))
        yield shown
        for shown in pictures:
            yield shown
        last.write_bytes(encode_png(shown))
        for _ in range(self._config.fps):
            yield shown


def caption(step: int, reward: float, value: float | None, ending: str) -> list[Line]:
    """What is written below a frame; `ending` is how the episode ended, on its last one."""
    facts = f"step {step}   reward {reward:.2f}"
    if value is not None:
        facts += f"   value {value:.2f}"
    return [(facts, ""), (ending, "good" if ending == "success" else "bad")]
