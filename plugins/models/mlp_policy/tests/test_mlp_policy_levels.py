"""Log-probabilities of chunks, actions and action dimensions, against torch's normal distribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.model import MLPPolicy

from rlinf_core.api import ActionSample, PolicyOutputs, Space
from rlinf_core.types import Trajectory

BOX = Space(shape=(2,), low=-0.5, high=1.5)  # centred at 0.5 with half-range 1
WANT = frozenset({"logprobs", "entropy", "values"})
SEEDS = [11, 2**62]
EXECUTED = np.array([[True, True, True], [True, False, False]])
SPREAD = torch.tensor([[0.5, 1.0], [0.25, 2.0], [1.5, 0.1]])  # standard deviations, C = 3, A = 2


def policy(level: Any, action: Space = BOX, **options: Any) -> tuple[MLPPolicy, Any]:
    """A model of this level, and the module that all levels have."""
    model = MLPPolicy(MLPPolicyConfig(hidden=(8,), **options))
    model.bind({"state": Space(shape=(3,))}, action)
    model.add_value_head()
    model.set_logprob_level(level)
    module: Any = model.module(1)
    if action.n is None:
        module.log_std.data.copy_(SPREAD.log().flatten())
    return model, module


def states() -> torch.Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(1))


def trajectory(sample: ActionSample, each: int, executed: Any = None) -> Trajectory:
    """Two decisions of `each` positions."""
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(2 * each, dtype=bool),
        logprobs=np.zeros(2 * each, dtype=np.float32),
        weight_version=0,
        observations={"state": states().numpy()},
        actions=sample.actions.numpy(),
        executed=executed,
    )


def peer(module: Any) -> torch.distributions.Normal:
    with torch.no_grad():
        return torch.distributions.Normal(0.5 + module({"state": states()})[0].view(2, 3, 2), SPREAD)


def outputs(level: Any, each: int, width: int | None = None) -> tuple[PolicyOutputs, ActionSample, Any]:
    model, module = policy(level, chunk=3)
    sample = model.act(module, {"state": states()}, SEEDS)
    inputs = model.collate([trajectory(sample, each, EXECUTED)], width)
    return model.policy_outputs(module, inputs, WANT), sample, module


def test_a_token_is_one_dimension_of_one_action_the_first_action_first() -> None:
    found, sample, module = outputs("token", 6)
    logprobs_NCA = peer(module).log_prob(sample.actions)
    torch.testing.assert_close(sample.logprobs_NK, logprobs_NCA.flatten(1))
    torch.testing.assert_close(sample.logprobs_N, logprobs_NCA.sum((1, 2)))
    executed = torch.from_numpy(EXECUTED)[..., None]
    torch.testing.assert_close(found.logprobs_BT[0], (logprobs_NCA * executed).flatten())
    torch.testing.assert_close(found.entropy_BT[0], (peer(module).entropy() * executed).flatten())
    assert found.logprobs_BT[0].count_nonzero() == 6 + 2


def test_an_action_sums_over_its_dimensions_and_a_chunk_over_its_executed_actions() -> None:
    found, sample, module = outputs("action", 3)
    logprobs_NC = peer(module).log_prob(sample.actions).sum(-1)
    torch.testing.assert_close(sample.logprobs_NK, logprobs_NC)
    torch.testing.assert_close(found.logprobs_BT[0], (logprobs_NC * torch.from_numpy(EXECUTED)).flatten())
    whole, chunks, _ = outputs("chunk", 1)
    assert chunks.logprobs_NK is None
    torch.testing.assert_close(chunks.logprobs_NC, logprobs_NC)
    torch.testing.assert_close(whole.logprobs_BT[0], found.logprobs_BT[0].view(2, 3).sum(1))
    torch.testing.assert_close(whole.entropy_BT[0], found.entropy_BT[0].view(2, 3).sum(1))


@pytest.mark.parametrize(("level", "each"), [("action", 3), ("token", 6)])
def test_every_position_of_a_decision_has_its_value_and_width_counts_positions(level: Any, each: int) -> None:
    whole, drawn, _ = outputs("chunk", 1)
    found, sample, _ = outputs(level, each, width=2 * each + 2)
    assert torch.equal(sample.actions, drawn.actions)
    assert found.values_BT.shape == found.logprobs_BT.shape == found.entropy_BT.shape == (1, 2 * each + 2)
    torch.testing.assert_close(found.values_BT[0, : 2 * each], whole.values_BT[0].repeat_interleave(each))
    assert not found.logprobs_BT[0, 2 * each :].any()


def test_rows_of_other_lengths_stand_beside_each_other_at_every_level() -> None:
    model, module = policy("token", chunk=3)
    sample = model.act(module, {"state": states()}, SEEDS)
    long = trajectory(sample, 6)
    short = replace(
        long,
        mask=long.mask[:6],
        actions=long.actions[:1],
        observations={"state": long.observations["state"][:1]},
    )
    found = model.policy_outputs(module, model.collate([short, long]), WANT)
    assert found.logprobs_BT.shape == (2, 12)
    torch.testing.assert_close(found.logprobs_BT[0, :6], found.logprobs_BT[1, :6])
    torch.testing.assert_close(found.logprobs_BT[1].view(2, 6), sample.logprobs_NK)


@pytest.mark.parametrize("level", ["chunk", "action", "token"])
def test_a_discrete_action_is_one_position_at_every_level(level: Any) -> None:
    model, module = policy(level, Space(n=3))
    sample = model.act(module, {"state": states()}, SEEDS)
    found = model.policy_outputs(module, model.collate([trajectory(sample, 1)]), WANT)
    torch.testing.assert_close(found.logprobs_BT[0], sample.logprobs_N)
    assert found.values_BT.shape == found.entropy_BT.shape == (1, 2)
    assert (sample.logprobs_NK is None) == (level == "chunk")
