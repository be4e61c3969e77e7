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
from rlinf_core.roles.films import SUFFIX
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
        films = sorted(self._of(step).glob(f"{kind}-*{SUFFIX}"))
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
        with np.load(path) as film:
            whole = {name: film[name] for name in film.files}
        row = rows.get(tuple(whole["row"].tolist()))
        values_F = None
        if row is not None and self._values is not None and self._config.overlay:
            values_T = self._values(row)
            values_F = values_T[:: len(values_T) // len(row.actions)][whole["decisions"]]
        pictures = [*self._pictures(whole, values_F)]
        start = path.with_name(path.name.removesuffix(SUFFIX))
        video = Video(start.name, start.with_suffix(".mp4"), start.with_name(f"{start.name}-last.png"))
        with writing(video.path):
            held = [pictures[-1]] * self._config.fps  # a second to see how it ended
            write_mp4(video.path, [*pictures, *held], self._config.fps)
            start.with_name(f"{start.name}-first.png").write_bytes(encode_png(pictures[0]))
            video.still.write_bytes(encode_png(pictures[-1]))
            path.unlink()
        return video

    def _pictures(
        self, film: dict[str, NDArray[Any]], values_F: NDArray[np.float32] | None
    ) -> Iterator[NDArray[np.uint8]]:
        count = len(film["frames"])
        paid_F = np.cumsum(film["rewards"])
        for number, frame in enumerate(film["frames"]):
            picture = enlarged(frame)
            if not self._config.overlay:
                yield picture
                continue
            ending = str(film["ended"]) if number == count - 1 else ""
            value = None if values_F is None else float(values_F[number])
            lines = caption(number, float(paid_F[number]), value, ending)
            told = str(film["instruction"])
            yield captioned(picture, [*lines, (told, "")] if told else lines)


def caption(step: int, reward: float, value: float | None, ending: str) -> list[Line]:
    """What is written below a frame; `ending` is how the episode ended, on its last one."""
    facts = f"step {step}   reward {reward:.2f}"
    if value is not None:
        facts += f"   value {value:.2f}"
    return [(facts, ""), (ending, "good" if ending == "success" else "bad")]
