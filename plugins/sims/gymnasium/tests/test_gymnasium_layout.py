"""Spaces become flat states and actions as worked out by hand; what cannot be served is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rlinf_sim_gymnasium.config import GymnasiumConfig
from rlinf_sim_gymnasium.layout import ActionLayout, flattener, state_size
from rlinf_sim_gymnasium.simulator import GymnasiumSimulator

from rlinf_core.errors import ConfigError, PluginError


class Hidden(gymnasium.Env[Any, Any]):
    """Keeps its state where nobody can see it."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.engine = SimpleNamespace()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}


gymnasium.register("TestHidden-v0", entry_point=Hidden, max_episode_steps=4)
gymnasium.register("TestEndless-v0", entry_point=Hidden)


def test_states_are_sorted_by_key_and_discrete_ones_are_one_hot() -> None:
    goal = spaces.Box(-1, 1, (2, 2))
    space = spaces.Dict(
        [("z", goal), ("a", spaces.Discrete(3, start=5)), ("m", spaces.MultiDiscrete([2, 3]))]
    )
    seen = {"z": np.array([[1.0, 2.0], [3.0, 4.0]]), "a": np.int64(6), "m": np.array([1, 0])}
    flat = flattener(space)(seen)
    assert flat.tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 1, 2, 3, 4]
    assert flat.dtype == np.float32
    assert state_size(space, "it") == 12
    pair = spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(2)])
    assert flattener(pair)((np.array([1, 0]), 1)).tolist() == [1, 0, 0, 1]
    assert state_size(pair, "it") == 4


def test_actions_of_unequal_bounds_are_scaled_to_each_dimension() -> None:
    layout = ActionLayout(spaces.Box(np.array([0.0, -4.0]), np.array([2.0, 4.0]), dtype=np.float64), "it")
    assert (layout.space.shape, layout.space.low, layout.space.high) == ((2,), -1.0, 1.0)
    actions_NCA = np.array([[[0.5, 0.5], [-3.0, 7.0]]])
    assert layout.to_environment(actions_NCA).tolist() == [[[1.5, 2.0], [0.0, 4.0]]]


def test_actions_of_equal_bounds_are_clipped_and_take_the_shape_of_the_box() -> None:
    layout = ActionLayout(spaces.Box(-3.0, 3.0, (1, 2), np.float32), "it")
    assert (layout.space.shape, layout.space.low, layout.space.high) == ((2,), -3.0, 3.0)
    actions = layout.to_environment(np.array([[[1.0, 5.0]]]))
    assert (actions.tolist(), actions.dtype) == ([[[[1.0, 3.0]]]], np.float32)


def test_a_box_with_an_open_side_is_not_scaled() -> None:
    layout = ActionLayout(spaces.Box(np.array([0.0, -1.0]), np.array([np.inf, 1.0]), dtype=np.float64), "it")
    assert (layout.space.low, layout.space.high) == (-np.inf, np.inf)
    assert layout.to_environment(np.array([[[7.0, 2.0]]])).tolist() == [[[7.0, 1.0]]]


def test_discrete_actions_start_where_the_environment_starts_them() -> None:
    layout = ActionLayout(spaces.Discrete(3, start=-1), "it")
    assert (layout.space.n, layout.to_environment(np.array([[0, 2]]))) == (3, [[-1, 1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"id": "Reecher-v5"},
            r"simulator.id \(gymnasium\): no environment 'Reecher-v5'.*near names: Reacher-v5",
        ),
        (
            {"id": "X-v0", "imports": ("no_such",)},
            r"simulator.imports \(gymnasium\): cannot import 'no_such'",
        ),
        ({"id": "TestEndless-v0"}, r"simulator.max_episode_steps \(gymnasium\).*without a limit; set one"),
        (
            {"id": "Reacher-v5", "kwargs": {"reward_dist_wait": 1}},
            r"simulator.kwargs.reward_dist_wait \(gymnasium\).*Did you mean 'reward_dist_weight'",
        ),
        (
            {"id": "Reacher-v5", "kwargs": {"frame_skip": "x"}},
            r"simulator.kwargs \(gymnasium\): Reacher-v5 cannot be made",
        ),
        (
            {"id": "TestHidden-v0", "images": True},
            r"simulator.images \(gymnasium\): TestHidden-v0 does not render",
        ),
        ({"id": ""}, r"simulator.id \(gymnasium\): it is empty"),
        ({"id": "Reacher-v5", "state": False}, r"simulator.state \(gymnasium\): false without images"),
        ({"id": "Reacher-v5", "image_size": 2}, r"simulator.image_size \(gymnasium\): 2"),
        ({"id": "Reacher-v5", "max_episode_steps": -1}, r"simulator.max_episode_steps \(gymnasium\): -1"),
        ({"id": "Reacher-v5", "kwargs": {"width": 9}}, r"simulator.kwargs.width \(gymnasium\): set by this"),
    ],
)
def test_what_cannot_be_made_is_refused_by_its_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GymnasiumSimulator(GymnasiumConfig(**options), 1, 0)


def test_an_environment_in_a_file_of_the_current_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rlinf_test_beside.py").write_text(
        "import gymnasium\n"
        "cart = gymnasium.spec('CartPole-v1').entry_point\n"
        "gymnasium.register('TestBeside-v0', cart, max_episode_steps=7)\n"
    )
    (tmp_path / "rlinf_test_torn.py").write_text("import gymnasium\ngymnasium.registre('TestTorn-v0')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    simulator = GymnasiumSimulator(GymnasiumConfig("TestBeside-v0", imports=("rlinf_test_beside",)), 1, 0)
    assert simulator.max_episode_steps == 7
    with pytest.raises(ConfigError, match=r"'rlinf_test_torn': AttributeError: .* \(rlinf_test_torn.py:2 in"):
        GymnasiumSimulator(GymnasiumConfig("TestTorn-v0", imports=("rlinf_test_torn",)), 1, 0)


def test_spaces_without_a_fixed_size_are_refused_by_the_environment_name() -> None:
    with pytest.raises(ConfigError, match=r"simulator.id \(gymnasium\): Talk-v0 shows Text"):
        state_size(spaces.Text(3), "Talk-v0")
    with pytest.raises(ConfigError, match=r"simulator.id \(gymnasium\): Talk-v0 takes MultiDiscrete"):
        ActionLayout(spaces.MultiDiscrete([2, 2]), "Talk-v0")


def test_states_that_are_out_of_sight_or_of_others_are_refused() -> None:
    hidden = GymnasiumSimulator(GymnasiumConfig("TestHidden-v0"), 1, 0)
    with pytest.raises(PluginError, match=r"cannot save its state: 'engine' is a SimpleNamespace"):
        hidden.save_state()
    with pytest.raises(PluginError, match="does not render"):
        hidden.render()
    two, three = (GymnasiumSimulator(GymnasiumConfig("CartPole-v1"), envs, 0) for envs in (2, 3))
    two.reset([0, 1])
    with pytest.raises(PluginError, match="a state of 2 x CartPole-v1 does not fit 3 x CartPole-v1"):
        three.load_state(two.save_state())


def test_tasks_are_the_registered_ids() -> None:
    simulator = GymnasiumSimulator(GymnasiumConfig("FetchReach-v4", imports=("gymnasium_robotics",)), 1, 0)
    assert {"Reacher-v5", "FetchReach-v4"} <= set(simulator.tasks())
    assert simulator.observation_space["state"].shape == (16,)  # achieved goal, desired goal, observation
