"""Pictures and videos as files: a PNG loses nothing, a video has every frame, and faults are told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.errors import DataError
from rlinf_core.media.mp4 import read_mp4, write_mp4
from rlinf_core.media.png import decode_picture, encode_png

av = pytest.importorskip("av")


def frames(count: int, height: int = 32, width: int = 48) -> list[Any]:
    """Each with its own brightness."""
    return [np.full((height, width, 3), 10 * number, dtype=np.uint8) for number in range(count)]


def test_a_png_keeps_every_pixel() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    content = encode_png(picture)
    assert content.startswith(b"\x89PNG")
    np.testing.assert_array_equal(decode_picture(content, "it"), picture)
    with pytest.raises(DataError, match="frame 3 cannot be read as a picture"):
        decode_picture(content[:40], "frame 3")


def test_a_video_has_its_frames_in_order_at_their_times(tmp_path: Path) -> None:
    path = tmp_path / "a/b.mp4"
    write_mp4(path, iter(frames(20)), 10, keyframe_every=2)
    assert [round(float(frame.mean()) / 10) for frame in read_mp4(path)] == list(range(20))
    with av.open(str(path)) as container:
        shown = list(container.decode(video=0))
    assert [frame.time for frame in shown] == pytest.approx([number / 10 for number in range(20)])
    assert all(frame.key_frame for frame in shown[::2])


def test_the_same_frames_make_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_mp4(tmp_path / name, frames(5), 10)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_is_no_video_or_cannot_be_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="pictures of 31 x 48: both must be even"):
        write_mp4(tmp_path / "odd.mp4", frames(2, height=31), 10)
    with pytest.raises(DataError, match="a video needs at least one frame"):
        write_mp4(tmp_path / "none.mp4", [], 10)
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(DataError, match=r"text.mp4 cannot be read as a video"):
        list(read_mp4(tmp_path / "text.mp4"))


def test_the_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DataError, match=r"a.mp4 needs the package av: pip install av"):
        write_mp4(tmp_path / "a.mp4", frames(1), 10)
