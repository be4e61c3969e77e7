"""Pictures of the Meta-World simulator: upright, each of its own arm, and without effect on episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rlinf_sim_metaworld.arm import Arm
from rlinf_sim_metaworld.config import CAMERAS, MetaWorldConfig
from rlinf_sim_metaworld.pictures import Pictures
from rlinf_sim_metaworld.simulator import MetaWorldSimulator

from rlinf_core.errors import ConfigError, PluginError
from rlinf_core.testing import parametrize_with_checks


@pytest.fixture(scope="module")
def drawing() -> None:
    """Something to draw with."""
    try:
        pictures = Pictures(shadows=False)
        pictures.draw(Arm("reach-v3"), "topview", 16)
        pictures.close()
    except ConfigError as err:
        pytest.skip(str(err))


def simulator(task: str = "reach-v3", num_envs: int = 2, **options: Any) -> MetaWorldSimulator:
    return MetaWorldSimulator(MetaWorldConfig(task, **{"images": True, **options}), num_envs, 0)


SHOWN = {"images": True, "image_size": 16, "instruction": True, "cameras": ("gripperPOV",)}


@pytest.mark.slow
@parametrize_with_checks("simulators", "metaworld", {**SHOWN, "state": False, "max_episode_steps": 9})
def test_pictures_conform(check: Callable[[], None], drawing: None) -> None:
    check()


def test_pictures_are_upright_and_show_the_goal_of_their_own_arm(drawing: None) -> None:
    two = simulator(cameras=CAMERAS, image_size=96)
    shown = two.reset([3, 4]).images
    assert list(shown) == list(CAMERAS)
    for camera in CAMERAS:
        assert np.abs(shown[camera][0].astype(int) - shown[camera][1]).max() > 50, "other goals"
    for camera in ("corner", "corner2", "corner4", "behindGripper"):
        upper, lower = np.split(shown[camera][0].astype(int), 2)
        assert upper.mean() - lower.mean() > -40
    wood = shown["corner2"][0][60:80, 40:60].astype(int).mean((0, 1))
    assert wood[0] > wood[2] + 20, "the table is below the middle"
    alone = simulator(num_envs=1, cameras=("corner4",), image_size=96)
    np.testing.assert_array_equal(alone.reset([4]).images["corner4"][0], shown["corner4"][1])


def test_drawing_changes_nothing_about_episodes(drawing: None) -> None:
    blind, seeing = simulator("drawer-open-v3", 1, images=False), simulator("drawer-open-v3", 1)
    actions = np.random.default_rng(0).uniform(-1, 1, (1, 20, 4)).astype(np.float32)
    for seed in (5, 6):
        np.testing.assert_array_equal(blind.reset([seed]).state, seeing.reset([seed]).state)
        for c in range(20):
            expected, found = (each.step(actions[:, c : c + 1]) for each in (blind, seeing))
            np.testing.assert_array_equal(found.observation.state, expected.observation.state)
            np.testing.assert_array_equal(found.rewards_NC, expected.rewards_NC)
            seeing.render()


def test_people_see_larger_pictures_of_those_they_ask_for(drawing: None) -> None:
    three = simulator(num_envs=3, images=False, render_size=48)
    assert three.render().max() == 0, "no episode has started"
    three.reset([3, 4, 5])
    some = three.render_some([2, 0])
    assert some.shape == (2, 48, 48, 3)
    np.testing.assert_array_equal(some, three.render()[[2, 0]])
    three.offload()
    np.testing.assert_array_equal(some, three.render()[[2, 0]])


def test_several_tasks_are_drawn_and_told_side_by_side(drawing: None) -> None:
    ten = simulator("MT10", 3, instruction=True)
    shown = ten.reset([0, 1, 3])
    assert shown.instruction == ["reach", "push", "door open"]
    door = shown.images["corner4"][2]
    ten.restart({1: 3})
    np.testing.assert_array_equal(ten.restart({0: 3}).images["corner4"], np.stack([door] * 3))


def test_a_saved_state_shows_the_same_picture(drawing: None) -> None:
    first, second = simulator(num_envs=1), simulator(num_envs=1)
    first.reset([4])
    second.reset([9])
    shown = first.step(np.ones((1, 3, 4), dtype=np.float32)).observation.images["corner4"]
    np.testing.assert_array_equal(second.load_state(first.save_state()).images["corner4"], shown)
    with pytest.raises(PluginError, match="or shows other things"):
        simulator(num_envs=1, images=False).load_state(first.save_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": ("corner5",)}, r"simulator.cameras \(metaworld\): corner5: use some of corner, corner2"),
        ({"cameras": ()}, r"simulator.cameras \(metaworld\): none named"),
        ({"image_size": 4}, r"simulator.image_size \(metaworld\): 4"),
        ({"images": False, "state": False}, r"simulator.state \(metaworld\): false without images"),
        ({"state": False, "task_id": True}, r"simulator.task_id \(metaworld\)"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_its_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulator(**options)
