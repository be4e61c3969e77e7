"""Pictures of the Gymnasium simulator: drawn with what the machine has, each from its own context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from rlinf_sim_gymnasium.config import GymnasiumConfig
from rlinf_sim_gymnasium.simulator import GymnasiumSimulator

from rlinf_core.errors import ConfigError
from rlinf_core.media import offscreen
from rlinf_core.media.offscreen import Camera
from rlinf_core.media.resizing import resized
from rlinf_core.testing import parametrize_with_checks


@pytest.fixture(scope="module")
def drawing() -> None:
    """Something to draw with."""
    try:
        model = gymnasium.make("Reacher-v5").unwrapped.model
        Camera(model, 64, {}, shadows=False, simulator="gymnasium").close()
    except ConfigError as err:
        pytest.skip(str(err))


def simulator(name: str = "Reacher-v5", num_envs: int = 2, **options: Any) -> GymnasiumSimulator:
    return GymnasiumSimulator(
        GymnasiumConfig(name, images=True, **{"render_size": 64, **options}), num_envs, 0
    )


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


def test_drawing_on_the_cpu_is_told_once(
    drawing: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offscreen, "has_gpu", lambda: False)
    offscreen._tell_once.cache_clear()
    for _ in range(2):
        reacher = simulator()
        reacher.reset([1, 2])
        reacher.close()
    assert caplog.text.count(f"pictures are drawn on the CPU with {offscreen.graphics('gymnasium')}") == 1


def test_people_see_larger_pictures_of_those_they_ask_for(drawing: None) -> None:
    reacher = simulator(num_envs=3, render_size=128)
    shown = reacher.reset([3, 4, 5]).images["main"]
    some = reacher.render_some([2, 0])
    assert some.shape == (2, 128, 128, 3)
    for picture, n in zip(some, (2, 0), strict=True):
        halved = resized(picture, 64).astype(int)
        assert np.abs(halved - shown[n]).mean() < 3, "the same view"
    np.testing.assert_array_equal(reacher.render()[[2, 0]], some)
    np.testing.assert_array_equal(reacher.render_some([1])[0], reacher.render()[1])
