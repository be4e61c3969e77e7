"""What plugins return by mistake is told in their words."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_core.api import Advantages, Observation, Space
from rlinf_core.errors import PluginError
from rlinf_core.roles.promises import (
    expect_advantages,
    expect_built,
    expect_loss,
    expect_observation,
    expect_shapes,
    expect_transition,
)

BUILT = SimpleNamespace(num_envs=2, max_episode_steps=9, action_space=Space((1,)), observation_space={})


@pytest.mark.parametrize(
    ("left_out", "todo"),
    [
        ("num_envs", r"call super\(\).__init__\(config, num_envs, seed\)"),
        ("max_episode_steps", "set self.max_epi"),
    ],
)
def test_what_a_constructor_left_out_is_named(left_out: str, todo: str) -> None:
    expect_built(BUILT)
    parts = {name: value for name, value in vars(BUILT).items() if name != left_out}
    with pytest.raises(PluginError, match=rf"has no {left_out}; {todo}.* in __init__"):
        expect_built(SimpleNamespace(**parts))


def test_what_gymnasium_returns_is_refused() -> None:
    with pytest.raises(PluginError, match="reset and restart return tuple; it has to be an Observation"):
        expect_observation(BUILT, (Observation(), {}))
    with pytest.raises(PluginError, match="step returns tuple; it has to be a Transition"):
        expect_transition(BUILT, (Observation(), 0.0, False, False, {}))


def test_observations_have_the_shapes_of_their_spaces() -> None:
    simulator = SimpleNamespace(observation_space={"state": Space((2,))})
    expect_shapes(simulator, {"state": np.zeros((5, 2)), "instruction": np.zeros((5, 7))})
    with pytest.raises(PluginError, match=r"'state' of shape \(3,\) for each environment; .* says \(2,\)"):
        expect_shapes(simulator, {"state": np.zeros((5, 3))})


def test_advantages_and_losses_have_their_types_and_shapes() -> None:
    mask_BT = torch.ones(3, 4, dtype=torch.bool)
    expect_advantages(BUILT, Advantages(torch.zeros(3, 4)), mask_BT)
    with pytest.raises(PluginError, match=r"advantages_BT has shape \(3,\); .* of mask_BT, \(3, 4\)"):
        expect_advantages(BUILT, Advantages(torch.zeros(3)), mask_BT)
    with pytest.raises(PluginError, match="advantages returns Tensor; it has to be Advantages"):
        expect_advantages(BUILT, torch.zeros(3, 4), mask_BT)
    with pytest.raises(PluginError, match=r"loss returns Tensor; it has to be LossTerms\(total, metrics\)"):
        expect_loss(BUILT, torch.zeros(()))
