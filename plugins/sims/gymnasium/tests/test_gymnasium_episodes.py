"""Episodes of the Gymnasium simulator are those of Gymnasium, step by step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rlinf_sim_gymnasium.config import GymnasiumConfig
from rlinf_sim_gymnasium.simulator import GymnasiumSimulator


class Counter(gymnasium.Env[Any, Any]):
    """Counts up by the action; pays the count; succeeds at 5, fails below -1, is unstable at 4."""

    def __init__(self, succeeds: bool = True) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = spaces.Box(-10.0, 10.0, (1,), np.float64)
        self.succeeds = succeeds
        self.count = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0.0
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += float(action[0])
        seen = np.array([np.nan if self.count == 4 else self.count])
        success = self.succeeds and self.count >= 5
        return seen, self.count, self.count < -1, False, {"is_success": success}


gymnasium.register("TestCounter-v0", entry_point=Counter, max_episode_steps=4)


def simulator(name: str, num_envs: int = 2, **options: Any) -> GymnasiumSimulator:
    return GymnasiumSimulator(GymnasiumConfig(name, **options), num_envs, 0)


def peer(name: str, seed: int, actions: Any, limit: int | None = None) -> Any:
    """States and rewards of Gymnasium alone, and the state after an automatic reset."""
    env = gymnasium.make(name, max_episode_steps=limit)
    states, rewards = [env.reset(seed=seed)[0]], []
    for action in actions:
        seen, reward, terminated, truncated, _ = env.step(action)
        states.append(seen)
        rewards.append(reward)
        if terminated or truncated:
            return states, rewards, terminated, truncated, env.reset()[0]
    return states, rewards, False, False, None


def test_a_chunk_that_meets_the_time_limit_is_cut_and_the_next_episode_shown() -> None:
    actions_NCA = np.random.default_rng(0).uniform(-1, 1, (2, 5, 2)).astype(np.float32)
    reacher = simulator("Reacher-v5", max_episode_steps=3)
    first = reacher.reset([7, 8])
    outcome = reacher.step(actions_NCA)
    for n, seed in enumerate((7, 8)):
        states, rewards, _, truncated, again = peer("Reacher-v5", seed, actions_NCA[n], 3)
        assert truncated
        np.testing.assert_array_equal(first.state[n], states[0].astype(np.float32))
        np.testing.assert_array_equal(outcome.final_observation.state[n], states[-1].astype(np.float32))
        np.testing.assert_array_equal(outcome.observation.state[n], again.astype(np.float32))
        np.testing.assert_allclose(outcome.rewards_NC[n], [*rewards, 0, 0], rtol=1e-6)
    assert outcome.executed_NC.tolist() == [[True, True, True, False, False]] * 2
    assert outcome.truncated_NC.tolist() == [[False, False, True, False, False]] * 2
    assert not outcome.terminated_NC.any()
    assert not outcome.success_N.any()


def test_a_fallen_pole_terminates_and_a_standing_one_is_truncated() -> None:
    poles = simulator("CartPole-v1", max_episode_steps=12)
    poles.reset([1, 1])
    chunk_NC = np.array([[1] * 12, [0, 1] * 6])  # always to the right: the pole falls; to and fro: it stands
    outcome = poles.step(chunk_NC)
    states, rewards, terminated, _, _ = peer("CartPole-v1", 1, chunk_NC[0])
    assert terminated
    assert outcome.terminated_NC[0].nonzero()[0].tolist() == [len(rewards) - 1]
    assert outcome.truncated_NC[1].nonzero()[0].tolist() == [11]
    assert outcome.rewards_NC.sum(1).tolist() == [len(rewards), 12]
    np.testing.assert_array_equal(outcome.final_observation.state[0], states[-1])
    assert poles.action_space.n == 2


def test_the_first_success_ends_an_episode_as_a_termination() -> None:
    counters = simulator("TestCounter-v0", 3)
    counters.reset([0, 0, 0])
    outcome = counters.step(np.array([[[3], [3], [1]], [[1], [1], [1]], [[-2], [1], [1]]], dtype=np.float32))
    assert outcome.success_N.tolist() == [True, False, False]
    assert outcome.terminated_NC.tolist() == [[False, True, False], [False] * 3, [True, False, False]]
    assert outcome.rewards_NC.tolist() == [[3, 6, 0], [1, 2, 3], [-2, 0, 0]]
    assert outcome.final_observation.state[:, 0].tolist() == [6, 3, -2]
    assert outcome.observation.state[:, 0].tolist() == [0, 3, 0]


def test_an_unstable_episode_ends_at_once_with_finite_numbers(caplog: pytest.LogCaptureFixture) -> None:
    counters = simulator("TestCounter-v0")
    counters.reset([0, 0])
    outcome = counters.step(np.array([[[4], [1]], [[1], [1]]], dtype=np.float32))
    assert outcome.terminated_NC.tolist() == [[True, False], [False, False]]
    assert outcome.rewards_NC.tolist() == [[0, 0], [1, 2]]
    assert outcome.final_observation.state[:, 0].tolist() == [0, 2]
    assert "became unstable" in caplog.text


def test_an_episode_succeeds_by_its_return_when_it_ends() -> None:
    counters = simulator("TestCounter-v0", kwargs={"succeeds": False}, success_return=6)
    counters.reset([0, 0])
    for _ in range(2):  # the second time after an automatic reset
        outcome = counters.step(np.array([[[1]] * 3, [[0.5]] * 3], dtype=np.float32))
        assert not outcome.success_N.any()  # 1 + 2 + 3 and .5 + 1 + 1.5, but they go on
        outcome = counters.step(np.array([[[-1]], [[0]]], dtype=np.float32))
        assert outcome.truncated_NC.all()
        assert outcome.success_N.tolist() == [True, False]  # 8, 4.5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Ant-v5", {}),
        ("CartPole-v1", {}),
        ("FetchPush-v4", {"imports": ("gymnasium_robotics",)}),
    ],
)
def test_a_saved_state_goes_on_bit_for_bit_over_the_end_of_episodes(name: str, options: Any) -> None:
    first, second = (simulator(name, max_episode_steps=6, **options) for _ in range(2))
    shape = (2, 2) if first.action_space.n else (2, 2, *first.action_space.shape)
    actions = np.random.default_rng(3).integers(0, 2, shape)
    first.reset([4, 5])
    second.reset([8, 9])
    shown = first.step(actions).observation
    np.testing.assert_array_equal(second.load_state(first.save_state()).state, shown.state)
    for _ in range(4):
        expected, found = first.step(actions), second.step(actions)
        np.testing.assert_array_equal(found.observation.state, expected.observation.state)
        np.testing.assert_array_equal(found.rewards_NC, expected.rewards_NC)
        np.testing.assert_array_equal(found.truncated_NC, expected.truncated_NC)
