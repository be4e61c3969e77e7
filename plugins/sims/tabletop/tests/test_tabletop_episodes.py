"""Episodes of the tabletop simulator: what they show, what they pay and how they end."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from rlinf_sim_tabletop.config import TabletopConfig
from rlinf_sim_tabletop.scene import start
from rlinf_sim_tabletop.simulator import TabletopSimulator

from rlinf_core.errors import ConfigError, PluginError

PAINT = {"red": (1, 0, 0), "blue": (0, 0, 1), "green": (0, 1, 0), "yellow": (1, 1, 0)}


def tables(num_envs: int = 1, **options: Any) -> TabletopSimulator:
    made = TabletopSimulator(TabletopConfig(**options), num_envs, 0)
    made.auto_reset = False
    return made


def colour_at(picture: Any, place: Any) -> tuple[int, ...]:
    """Which of red, green and blue are bright in the pixel above a place of the table."""
    side = picture.shape[0]
    half = 1.05 * np.tan(np.radians(22.5)) * (1.05 - 0.06) / 1.05  # of the table at a block's upper side
    column, row = ((np.array([place[0], -place[1]]) / half + 1) / 2 * side).astype(int)
    return tuple(int(value > 120) for value in picture[row, column])


def test_the_block_that_is_named_stands_in_the_picture_where_the_expert_goes() -> None:
    many = tables(24, blocks=3, colours=4)
    shown = many.reset(range(24))
    assert shown.instruction is not None
    for n, text in enumerate(shown.instruction):
        verb, _, rest = text.partition(" the ")
        colour = rest.removesuffix(" block")
        assert verb in ("reach", "touch", "move to")
        begun = start(n, 3, 4, 3)
        assert colour_at(shown.images["top"][n], begun.blocks[begun.wanted]) == PAINT[colour]
        assert (np.abs(begun.blocks) < 1).all(axis=1).sum() == 3
    for _ in range(8):
        outcome = many.step(many.expert([1.0] * 24)[:, None])
    assert outcome.observation.state is not None
    begun = [start(n, 3, 4, 3) for n in range(24)]
    goals = np.stack([each.blocks[each.wanted] for each in begun]) / 0.38
    near_N = np.linalg.norm(outcome.observation.state - goals, axis=1) < 0.05 / 0.38
    assert near_N.mean() > 0.75  # the others met another block on the way


def test_a_success_pays_one_less_the_time_it_took_and_a_wrong_block_costs_all_that_is_left() -> None:
    many = tables(64, blocks=3, colours=3)
    many.reset(range(64))
    paid_N, steps_N = np.zeros(64), np.zeros(64)
    ended_N, success_N, late_N = (np.zeros(64, dtype=bool) for _ in range(3))
    for _ in range(8):
        outcome = many.step(many.expert([0.5] * 64)[:, None])
        steps_N += outcome.executed_NC[:, 0]
        paid_N += outcome.rewards_NC[:, 0]
        success_N |= outcome.success_N
        ended_N |= outcome.terminated_NC[:, 0]
        late_N |= outcome.truncated_NC[:, 0]
    wrong_N = ended_N & ~success_N
    assert wrong_N.any()
    assert late_N.any()
    np.testing.assert_allclose(paid_N[success_N], 1 - steps_N[success_N] / 8, atol=1e-6)
    np.testing.assert_allclose(paid_N[wrong_N | late_N], -1, atol=1e-6)
    assert not (ended_N & late_N).any()


def test_a_sparse_reward_is_one_for_the_action_that_succeeds() -> None:
    one = tables(reward="sparse")
    one.reset([3])
    paid = [float(one.step(one.expert([1.0])[:, None]).rewards_NC[0, 0]) for _ in range(8)]
    assert sorted(paid) == [0.0] * 7 + [1.0]


def test_an_action_moves_the_gripper_by_its_stride_and_not_over_the_edge() -> None:
    one = tables(colours=1, blocks=1, max_episode_steps=30)
    seed = next(s for s in range(99) if start(s, 1, 1, 3).blocks[0, 1] < -0.1)  # out of the way
    before = one.reset([seed]).state
    after = one.step(np.array([[[0.0, 0.5]]], dtype=np.float32)).observation.state
    assert before is not None
    assert after is not None
    np.testing.assert_allclose((after - before)[0] * 0.38, [0.0, 0.05], atol=0.01)
    far = one.step(np.ones((1, 12, 2), dtype=np.float32)).observation.state
    assert far is not None
    np.testing.assert_allclose(far[0], [1.0, 1.0], atol=0.02)


def test_speed_scales_the_experts_actions() -> None:
    many = tables(8)
    many.reset(range(8))
    full, half = many.expert([1.0] * 8), many.expert([0.5] * 8)
    np.testing.assert_allclose(half, full / 2, atol=1e-7)
    assert np.abs(full).max() == 1.0


def test_pictures_for_people_are_large_and_those_of_the_policy_stay_as_they_are() -> None:
    one = tables(image_size=32)
    first = one.reset([5]).images["top"].copy()
    assert first.shape == (1, 32, 32, 3)
    assert one.render().shape == (1, 256, 256, 3)
    np.testing.assert_array_equal(one.reset([5]).images["top"], first)


def test_a_state_of_another_number_of_tables_is_refused() -> None:
    two = tables(2)
    two.reset([1, 2])
    with pytest.raises(PluginError, match="a state of 2 tables does not fit 1"):
        tables().load_state(two.save_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colours": 5}, r"simulator.colours \(tabletop\): 5: must lie between 1 and 4"),
        ({"blocks": 3}, r"simulator.blocks \(tabletop\): 3: each has another colour, and there are 2"),
        ({"max_episode_steps": 0}, r"simulator.max_episode_steps \(tabletop\): 0"),
        ({"stride": 0.5}, r"simulator.stride \(tabletop\): 0.5: must lie between 0.01 and 0.2 metres"),
        ({"radius": 0.1}, r"simulator.radius \(tabletop\): 0.1"),
        ({"reward": "none"}, r"simulator.reward \(tabletop\): 'none': use shifted or sparse"),
        ({"image_size": 8}, r"simulator.image_size \(tabletop\): 8"),
    ],
)
def test_what_does_not_exist_is_refused_by_its_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TabletopConfig(**options)


def test_without_mujoco_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ConfigError, match=r"pip install 'mujoco>=3.2'"):
        tables()
