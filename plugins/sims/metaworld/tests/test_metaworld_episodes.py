"""Episodes of the Meta-World simulator are those of Meta-World, step by step."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS
from metaworld.policies import ENV_POLICY_MAP
from rlinf_sim_metaworld.config import MetaWorldConfig
from rlinf_sim_metaworld.simulator import MetaWorldSimulator
from rlinf_sim_metaworld.tasks import chosen

from rlinf_core.errors import ConfigError, PluginError

SOME = ("reach-v3", "box-close-v3", "faucet-open-v3", "hammer-v3", "lever-pull-v3", "window-close-v3")


def simulator(task: str, num_envs: int = 1, **options: Any) -> MetaWorldSimulator:
    return MetaWorldSimulator(MetaWorldConfig(task, **options), num_envs, 0)


def peer(task: str, seed: int) -> Any:
    """Meta-World's own environment at the start of an episode whose goal and objects this seed draws."""
    env = ALL_V3_ENVIRONMENTS[task]()
    env._partially_observable, env._set_task_called = False, True
    del env.sawyer_observation_space
    env.seed(seed)
    env.seeded_rand_vec, env._freeze_rand_vec = True, False
    env.reset_model()
    env._freeze_rand_vec = True
    return env


@pytest.mark.parametrize("task", SOME)
def test_an_episode_is_meta_worlds_bit_for_bit_also_after_others(task: str) -> None:
    ours, env = simulator(task, reward="dense"), peer(task, 7)
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 4)).astype(np.float32)
    ours.reset([3])
    ours.step(actions[None])
    shown = ours.reset([7]).state
    np.testing.assert_array_equal(shown, env.reset()[0].astype(np.float32)[None])
    outcome = ours.step(actions[None])
    expected = [env.step(action) for action in actions]
    np.testing.assert_array_equal(outcome.rewards_NC[0], np.float32([each[1] for each in expected]))
    np.testing.assert_array_equal(outcome.observation.state[0], expected[-1][0].astype(np.float32))


def test_an_expert_succeeds_and_each_way_of_paying_is_told_apart() -> None:
    experts = {reward: ENV_POLICY_MAP["reach-v3"]() for reward in ("dense", "shifted", "sparse")}
    paid: dict[str, list[float]] = {}
    for reward, expert in experts.items():
        ours = simulator("reach-v3", reward=reward)
        shown, paid[reward] = ours.reset([5]).state, []
        for _ in range(150):
            action = np.clip(expert.get_action(shown[0].astype(np.float64)), -1, 1)
            outcome = ours.step(action.astype(np.float32)[None, None])
            paid[reward].append(float(outcome.rewards_NC[0, 0]))
            if outcome.terminated_NC[0, 0]:
                break
            shown = outcome.observation.state
        assert outcome.success_N[0]
        assert not outcome.truncated_NC[0, 0]
    np.testing.assert_allclose(paid["shifted"], np.array(paid["dense"]) / 10 - 1, atol=1e-6)
    assert max(paid["shifted"]) <= 0.0
    assert paid["sparse"] == [0.0] * (len(paid["dense"]) - 1) + [1.0]


def test_the_seed_says_which_task_is_played_and_the_state_tells_the_policy() -> None:
    ten = simulator("MT10", 3, task_id=True, max_episode_steps=2)
    state = ten.reset([3, 14, 20]).state
    assert state[:, 39:].argmax(1).tolist() == [3, 4, 0]
    assert state[:, 39:].sum() == 3
    for n, (seed, number) in enumerate(((3, 3), (14, 4), (20, 0))):
        alone = simulator(chosen("MT10")[number])
        np.testing.assert_array_equal(alone.reset([seed]).state[0], state[n, :39])
    again = ten.restart({1: 3}).state
    np.testing.assert_array_equal(again[1], state[0])
    np.testing.assert_array_equal(again[2], state[2])


def test_a_saved_state_goes_on_bit_for_bit_in_another_simulator() -> None:
    first, second = (
        simulator("door-open-v3", max_episode_steps=6),
        simulator("door-open-v3", max_episode_steps=6),
    )
    actions = np.random.default_rng(3).uniform(-1, 1, (1, 4, 4)).astype(np.float32)
    first.reset([4])
    second.reset([9])
    shown = first.step(actions).observation
    np.testing.assert_array_equal(second.load_state(first.save_state()).state, shown.state)
    for _ in range(3):  # over the end of the episode
        expected, found = first.step(actions), second.step(actions)
        np.testing.assert_array_equal(found.observation.state, expected.observation.state)
        np.testing.assert_array_equal(found.rewards_NC, expected.rewards_NC)
    with pytest.raises(PluginError, match="a state of 1 x door-open-v3 does not fit 2 x door-open-v3"):
        simulator("door-open-v3", 2).load_state(first.save_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"task": "reech-v3"},
            r"simulator.task \(metaworld\): there is no task 'reech-v3'; near names: reach-v3",
        ),
        ({"max_episode_steps": 0}, r"simulator.max_episode_steps \(metaworld\): 0"),
        ({"reward": "none"}, r"simulator.reward \(metaworld\): 'none': use shifted, dense, sparse"),
    ],
)
def test_what_does_not_exist_is_refused_by_its_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MetaWorldSimulator(MetaWorldConfig(**options), 1, 0)


def test_without_meta_world_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(ConfigError, match=r"pip install 'metaworld>=3.1,<4'"):
        simulator("reach-v3")


def test_all_fifty_tasks_are_there() -> None:
    assert len(simulator("reach-v3").tasks()) == len(chosen("MT50")) == 50
    assert set(chosen("MT10")) < set(chosen("MT50"))
