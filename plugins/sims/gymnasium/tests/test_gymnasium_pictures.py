"""Pictures of the Gymnasium simulator: drawn with what the machine has, each from its own context."""

from __future__ import annotations

import ctypes.util
import glob
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from rlinf_sim_gymnasium import rendering
from rlinf_sim_gymnasium.config import GymnasiumConfig
from rlinf_sim_gymnasium.simulator import GymnasiumSimulator

from rlinf_core.errors import ConfigError
from rlinf_core.testing import parametrize_with_checks


@pytest.fixture(scope="module")
def drawing() -> None:
    """Something to draw with."""
    try:
        rendering.Camera(gymnasium.make("Reacher-v5").unwrapped.model, 64, False, {"fixedcamid": -1}).close()
    except ConfigError as err:
        pytest.skip(str(err))


def simulator(name: str = "Reacher-v5", num_envs: int = 2, **options: Any) -> GymnasiumSimulator:
    return GymnasiumSimulator(GymnasiumConfig(name, images=True, **options), num_envs, 0)


@parametrize_with_checks("simulators", "gymnasium", {"images": True, "image_size": 32})
def test_pictures_conform(check: Callable[[], None], drawing: None) -> None:
    check()


def test_pictures_stay_right_when_another_simulator_closes_or_is_collected(drawing: None) -> None:
    kept = simulator("HalfCheetah-v5")  # textures, which a wrong context would take away
    expected = kept.reset([3, 4]).images["main"].copy()
    assert not np.array_equal(*expected)
    for _ in range(2):
        other = simulator("Ant-v5")
        assert other.reset([5, 6]).images["main"].std() > 10
        np.testing.assert_array_equal(kept.render(), expected)  # from here on its context is the current one
        other.close()
        np.testing.assert_array_equal(kept.render(), expected)
    kept.offload()
    np.testing.assert_array_equal(kept.render(), expected)
    kept.close()


def test_a_picture_shows_the_scene_of_its_own_environment(drawing: None) -> None:
    both, alone = simulator(), simulator(num_envs=1)
    together = both.reset([3, 4]).images["main"]
    np.testing.assert_array_equal(alone.reset([4]).images["main"][0], together[1])
    assert together.shape == (2, 64, 64, 3)
    assert np.abs(together[0].astype(int) - together[1]).max() > 50  # other arms, other goals


def test_without_its_state_an_environment_shows_pictures_only_and_resets_them(drawing: None) -> None:
    reacher = simulator(state=False, max_episode_steps=3)
    first = reacher.reset([3, 4])
    assert first.state is None
    assert set(reacher.observation_space) == {"images/main"}
    outcome = reacher.step(np.ones((2, 3, 2), dtype=np.float32))
    assert outcome.observation.state is None
    assert not np.array_equal(outcome.final_observation.images["main"], outcome.observation.images["main"])


@pytest.mark.parametrize(
    ("asked", "gpu", "installed", "chosen"),
    [
        ("", False, {"EGL", "OSMesa"}, "osmesa"),
        ("", True, {"EGL", "OSMesa"}, "egl"),
        ("", False, {"EGL"}, "egl"),
        ("EGL", False, {"EGL", "OSMesa"}, "egl"),
    ],
)
def test_software_draws_where_there_is_no_display_gpu(
    monkeypatch: pytest.MonkeyPatch, asked: str, gpu: bool, installed: set[str], chosen: str
) -> None:
    monkeypatch.setenv("MUJOCO_GL", asked)
    monkeypatch.setattr(glob, "glob", lambda pattern: ["card"] if gpu else [])
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name in installed else None)
    assert rendering.graphics() == chosen


def test_a_machine_that_cannot_draw_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ConfigError, match=r"simulator.images \(gymnasium\).*apt-get install libosmesa6"):
        rendering.graphics()
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(ConfigError, match="MUJOCO_GL=glfw: the simulator gymnasium draws with egl or osmesa"):
        rendering.graphics()


def test_drawing_on_the_cpu_is_told_once(
    drawing: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendering, "_has_gpu", lambda: False)
    rendering._tell_once.cache_clear()
    for _ in range(2):
        reacher = simulator()
        reacher.reset([1, 2])
        reacher.close()
    assert caplog.text.count(f"pictures are drawn on the CPU with {rendering.graphics()}") == 1


def test_a_larger_frame_is_averaged_and_a_smaller_one_repeated() -> None:
    frame = np.repeat(np.array([[0, 2, 10], [4, 6, 20], [7, 7, 7], [7, 7, 9]])[..., None], 3, axis=2)
    assert rendering.shrink(frame, 2)[..., 0].tolist() == [[2, 10], [7, 8]]  # halves go up
    assert rendering.shrink(frame[:2, :2], 4)[..., 1].tolist() == [[0, 0, 2, 2]] * 2 + [[4, 4, 6, 6]] * 2
