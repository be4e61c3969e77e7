"""PPO passes the conformance kit, as it comes and with its options on."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks

OPTIONS = {
    "group_size": 4,
    "critic": "own",
    "gamma": 0.99,
    "gae_lambda": 0.9,
    "value_clip": 0.2,
    "value_loss": "huber",
    "huber_delta": 0.5,
    "critic_warmup": 3,
    "kl_coef": 0.1,
    "kl_in": "both",
    "kl_reward_estimator": "k3",
    "kl_target": 0.05,
    "kl_horizon": 100,
    "entropy_coef": 0.01,
    "loss_aggregation": "seq-mean-token-sum",
}


@parametrize_with_checks("algorithms", "ppo")
def test_ppo_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("algorithms", "ppo", config=OPTIONS)
def test_ppo_with_its_options_on_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("algorithms", "ppo", config={**OPTIONS, "critic": "head", "value_coef": 0.1})
def test_ppo_with_a_value_head_and_its_options_on_conforms(check: Callable[[], None]) -> None:
    check()
