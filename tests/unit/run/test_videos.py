"""Videos of episodes: which are made, and what is to be seen in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.config.schema import Component, RunConfig, TrainConfig, VideoConfig
from rlinf_core.media.captions import captioned, enlarged
from rlinf_core.media.mp4 import read_mp4
from rlinf_core.media.png import decode_picture
from rlinf_core.plugins import NoConfig
from rlinf_core.roles.films import Film
from rlinf_core.run.videos import Videos, caption
from rlinf_core.types import EpisodeRequest, Trajectory

pytest.importorskip("av")
BLANK = Component("", "", NoConfig())
SETTINGS = VideoConfig(every=4, episodes=3, fps=5, train=True)


def videos(folder: Path, settings: VideoConfig = SETTINGS, values: Any = None) -> Videos:
    config = RunConfig(BLANK, BLANK, BLANK, BLANK, output=str(folder), train=TrainConfig(steps=10))
    return Videos(replace(config, video=settings), values)


def asked() -> list[list[EpisodeRequest]]:
    """Two groups of two."""
    return [[EpisodeRequest(group, replica, 0, 0) for replica in range(2)] for group in range(2)]


def names(requests: Any) -> list[str]:
    return [Path(request.film).name for group in requests for request in group]


def test_the_first_episodes_of_the_named_steps_and_the_last_evaluation_are_filmed(tmp_path: Path) -> None:
    made = videos(tmp_path)
    assert names(made.evaluation(8, asked())) == ["eval-0", "eval-1", "eval-2", ""]
    assert names(made.evaluation(0, asked()))[0] == "eval-0"
    assert names(made.evaluation(10, asked()))[0] == "eval-0"
    assert names(made.evaluation(9, asked())) == [""] * 4
    assert names(made.training(8, asked())) == ["train-0", "train-1", "train-2", ""]
    assert names(made.training(10, asked())) == [""] * 4
    assert names(videos(tmp_path, VideoConfig(every=4)).training(8, asked())) == [""] * 4
    assert names(videos(tmp_path, VideoConfig()).evaluation(0, asked())) == [""] * 4
    (request, *_), _ = made.evaluation(8, asked())
    assert Path(request.film).parent == tmp_path / "videos/step-8"


def film(folder: Path, **changed: Any) -> Trajectory:
    """Leaves the film of an episode of two decisions there, in which a square gets brighter."""
    fields: dict[str, Any] = {
        "group": 0,
        "replica": 0,
        "seed": 0,
        "mask": np.ones(4, dtype=bool),
        "logprobs": np.zeros(4, dtype=np.float32),
        "weight_version": 0,
        "observations": {},
        "actions": np.zeros((2, 2, 1), dtype=np.float32),
        "success": True,
    }
    row = Trajectory(**(fields | changed))
    request = next(iter(videos(folder).evaluation(4, asked())))[0]
    taken = Film(request)
    for number in range(3):
        taken.add(np.full((32, 48, 3), 80 * number, dtype=np.uint8), float(number), min(number, 1))
    taken.save(row, 3)
    return row


def test_a_video_and_its_first_and_last_picture_are_written(tmp_path: Path) -> None:
    row = film(tmp_path)
    (video,) = videos(tmp_path, replace(SETTINGS, overlay=False)).write(4, "eval", [row])
    assert video.name == "eval-0"
    frames = list(read_mp4(video.path))
    assert len(frames) == 3 + 5, "the last picture stays for a second"
    assert frames[0].shape == (256, 384, 3)
    assert [int(frame.mean().round()) for frame in frames[:4]] == pytest.approx([0, 80, 160, 160], abs=2)
    last = decode_picture(video.still.read_bytes(), "")
    assert (last == 160).all()
    files = {path.name for path in (tmp_path / "videos/step-4").iterdir()}
    assert files == {"eval-0.mp4", "eval-0-first.png", "eval-0-last.png"}, "the film itself is gone"


def test_captions_tell_the_reward_so_far_the_value_and_how_it_ended(tmp_path: Path) -> None:
    row, lines = film(tmp_path), []
    made = videos(tmp_path, values=lambda row: np.array([1.0, 1.0, 2.5, 2.5]))  # two positions a decision

    def spy(step: int, reward: float, value: float | None, ending: str) -> Any:
        lines.append((step, reward, value, ending))
        return caption(step, reward, value, ending)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlinf_core.run.videos.caption", spy)
        made.write(4, "eval", [row])
    assert lines == [(0, 0.0, 1.0, ""), (1, 1.0, 2.5, ""), (2, 3.0, 2.5, "success")]
    assert caption(2, 3.0, None, "failure") == [("step 2   reward 3.00", ""), ("failure", "bad")]
    assert caption(2, -0.5, 1.25, "success")[0] == ("step 2   reward -0.50   value 1.25", "")


def test_films_of_the_other_kind_are_left_alone(tmp_path: Path) -> None:
    row = film(tmp_path)
    assert videos(tmp_path).write(4, "train", [row]) == []
    assert videos(tmp_path).write(3, "eval", [row]) == []
    (video,) = videos(tmp_path).write(4, "eval", [])  # whose episode is not among the rows: without values
    assert video.path.is_file()


def test_small_pictures_are_enlarged_by_whole_pixels_and_sides_are_even() -> None:
    picture = np.arange(3 * 5 * 3, dtype=np.uint8).reshape(3, 5, 3)
    large = enlarged(picture)
    assert large.shape == (86 * 3, 86 * 5, 3)
    assert (large[85, 85] == picture[0, 0]).all()
    assert (large[86, 0] == picture[1, 0]).all()
    odd = np.zeros((301, 259, 3), dtype=np.uint8)
    assert enlarged(odd).shape == (302, 260, 3)


def test_text_below_a_picture_is_cut_to_its_width() -> None:
    picture = np.full((256, 256, 3), 7, dtype=np.uint8)
    found = captioned(picture, [("w" * 500, ""), ("success", "good")])
    assert (found[:256] == 7).all()
    assert found.shape == (256 + 46, 256, 3)
    strip = found[256:].astype(int)
    assert strip[:20, 240:250].max() > 100, "the first line goes to the edge"
    greenish = strip[23:, :, 1] - strip[23:, :, 0]
    assert greenish.max() > 80
