"""Pictures in other sizes, by hand."""

from __future__ import annotations

import numpy as np

from rlinf_core.media.resizing import resized


def test_a_larger_picture_is_averaged_and_a_smaller_one_repeated() -> None:
    frame = np.repeat(np.array([[0, 2, 10], [4, 6, 20], [7, 7, 7], [7, 7, 9]])[..., None], 3, axis=2)
    assert resized(frame, 2)[..., 0].tolist() == [[2, 10], [7, 8]]  # halves go up
    assert resized(frame[:2, :2], 4)[..., 1].tolist() == [[0, 0, 2, 2]] * 2 + [[4, 4, 6, 6]] * 2
    assert resized(frame[:3], 3).tolist() == frame[:3].tolist()


def test_pictures_of_a_batch_are_resized_apart() -> None:
    ramp = np.repeat(np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1) * 10, 3, axis=3)
    both = np.concatenate([ramp, 255 - ramp])
    small = resized(both, 2)  # columns in pairs: means of 0, 10 and 20, 30; then of 40, 50 and 60, 70
    assert small.shape == (2, 2, 2, 3)
    assert small[..., 0].tolist() == [[[5, 25], [45, 65]], [[250, 230], [210, 190]]]
    large = resized(both, 4)
    assert large[0, ..., 0].tolist() == [[0, 10, 20, 30]] * 2 + [[40, 50, 60, 70]] * 2
