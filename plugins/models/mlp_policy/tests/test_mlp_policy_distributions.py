"""Deviations that states tell, and actions behind a tanh, against torch and numerical integrals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.distributions import Squashed
from rlinf_model_mlp_policy.model import MLPPolicy
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import AffineTransform, TanhTransform

from rlinf_core.api import ActionSample, Space
from rlinf_core.errors import ConfigError, ModelError
from rlinf_core.types import Trajectory

BOX = Space(shape=(2,), low=-0.5, high=1.5)  # centred at 0.5 with half-range 1
WANT = frozenset({"logprobs", "entropy"})
SEEDS = [11, 2**62, 13]


def policy(action: Space = BOX, **options: Any) -> tuple[MLPPolicy, Any]:
    """A model, and a module whose outputs differ between states."""
    model = MLPPolicy(MLPPolicyConfig(hidden=(8,), **options))
    model.bind({"state": Space(shape=(3,))}, action)
    module: Any = model.module()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model, module


def states() -> torch.Tensor:
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(1))


def episode(sample: ActionSample, positions: int = 1) -> Trajectory:
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(3 * positions, dtype=bool),
        logprobs=np.zeros(3 * positions, dtype=np.float32),
        weight_version=0,
        observations={"state": states().numpy()},
        actions=sample.actions.numpy(),
        latents=None if sample.latents is None else sample.latents.numpy(),
    )


def test_a_state_tells_its_own_deviations() -> None:
    model, module = policy(std="state", init_log_std=-1.0, chunk=2)
    assert module.log_std is None
    sample = model.act(module, {"state": states()}, SEEDS)
    with torch.no_grad():
        means, told = module({"state": states()})[0].view(3, 2, 2, 2).unbind(1)
    peer = Normal(0.5 + means, (told - 1.0).exp())  # outputs: means of all actions, then what is added to -1
    assert float(peer.scale.std(0).min()) > 0.01
    torch.testing.assert_close(sample.logprobs_NC, peer.log_prob(sample.actions).sum(-1))
    found = model.policy_outputs(module, model.collate([episode(sample)]), WANT)
    torch.testing.assert_close(found.logprobs_BT[0], sample.logprobs_N)
    torch.testing.assert_close(found.entropy_BT[0], peer.entropy().sum((1, 2)))


def test_a_new_policy_starts_with_the_deviation_it_is_given_and_none_leaves_its_bounds() -> None:
    model = MLPPolicy(MLPPolicyConfig(std="state", init_log_std=-0.5))
    model.bind({"state": Space(shape=(3,))}, BOX)
    module: Any = model.module()
    sample = model.act(module, {"state": torch.zeros(1, 3)}, [1])  # the first outputs of zeros are zeros
    peer = Normal(torch.tensor([0.5, 0.5]), math.exp(-0.5))
    torch.testing.assert_close(sample.logprobs_N[0], peer.log_prob(sample.actions[0, 0]).sum())
    torch.nn.init.constant_(module.layers[-1].bias, 50.0)
    wide = model.act(module, {"state": torch.zeros(1, 3)}, [1])
    assert float((wide.actions - 50.5).abs().max()) < 5 * math.exp(2.0)


def test_squashed_actions_lie_in_the_range_with_the_density_of_torch() -> None:
    model, module = policy(squash=True, init_log_std=0.0)
    sample = model.act(module, {"state": states()}, SEEDS)
    assert sample.latents is not None
    assert bool((sample.actions > -0.5).all() & (sample.actions < 1.5).all())
    with torch.no_grad():
        means = module({"state": states()})[0].view(3, 1, 2)
        normal = Normal(means.double(), module.log_std.exp().view(1, 2).double())
    parts = [TanhTransform(), AffineTransform(0.5, 1.0)]
    peer = TransformedDistribution(normal, parts)
    logprobs = peer.log_prob(sample.actions.double()).sum((1, 2)).float()
    torch.testing.assert_close(sample.logprobs_N, logprobs, atol=1e-4, rtol=0)
    greedy = model.act(module, {"state": states()}, SEEDS, greedy=True).actions
    torch.testing.assert_close(greedy, 0.5 + means.tanh())


def test_an_action_at_the_edge_is_judged_by_what_was_drawn() -> None:
    squashed = Squashed(torch.tensor([[9.0]]), torch.zeros(1, 1), 0.0, 2.0)
    unit = torch.tensor([[12.0]])
    assert squashed.actions(unit).tolist() == [[2.0]]  # in float32 the edge itself: its unit is lost
    found = float(squashed.logprobs_K(unit, torch.ones(1), "chunk"))
    # N(12; 9, 1) = -4.5 - log(2 pi) / 2; log(1 - tanh(12)^2) = 2 log 2 - 24 but for e^-24; log 2 of the range
    by_hand = -4.5 - 0.5 * math.log(2 * math.pi) - (2 * math.log(2) - 24) - math.log(2)
    assert found == pytest.approx(by_hand, abs=1e-5)


def test_squashed_densities_integrate_to_one_and_their_entropy_is_the_integral() -> None:
    for mean, std in ((0.0, 0.6), (0.8, 1.0), (-1.5, 0.3), (2.0, 2.0)):
        squashed = Squashed(torch.tensor([[mean]]), torch.tensor([[std]]).log(), 0.5, 3.0)
        units = torch.linspace(mean - 9 * std, mean + 9 * std, 20001).double()[:, None, None]
        densities = squashed.logprobs_K(units, torch.ones(1), "token").exp().flatten()
        actions = squashed.actions(units).flatten()
        assert float(torch.trapezoid(densities, actions)) == pytest.approx(1.0, abs=2e-3)
        measured = -torch.trapezoid(densities * densities.clamp(min=1e-300).log(), actions)
        found = squashed.entropy_K(torch.ones(1), "token")
        assert float(found) == pytest.approx(float(measured), abs=5e-3)


def test_the_entropy_of_a_squashed_policy_has_the_gradient_of_its_differences() -> None:
    def entropy(mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
        return Squashed(mean.view(1, 1), log_std.view(1, 1), 0.0, 1.0).entropy_K(torch.ones(1), "chunk").sum()

    at = (torch.tensor(0.7).double(), torch.tensor(-0.2).double())
    leaves = [value.clone().requires_grad_() for value in at]
    entropy(*leaves).backward()
    for i, leaf in enumerate(leaves):
        moved = [[value + (1e-4 * sign if j == i else 0) for j, value in enumerate(at)] for sign in (1, -1)]
        difference = float(entropy(*moved[0]) - entropy(*moved[1])) / 2e-4
        assert leaf.grad is not None
        assert float(leaf.grad) == pytest.approx(difference, rel=1e-5)
    assert float(leaves[0].grad) < 0  # type: ignore[arg-type]  # nearer the edge there is less room


@pytest.mark.parametrize("level", ["chunk", "action", "token"])
def test_acting_and_training_agree_at_every_level(level: Any) -> None:
    model, module = policy(squash=True, std="state", chunk=2)
    model.set_logprob_level(level)
    positions = {"chunk": 1, "action": 2, "token": 4}[level]
    sample = model.act(module, {"state": states()}, SEEDS)
    found = model.policy_outputs(module, model.collate([episode(sample, positions)]), WANT)
    torch.testing.assert_close(found.logprobs_BT.view(3, positions).sum(1), sample.logprobs_N)
    labelled = model.label(sample.actions, SEEDS)
    torch.testing.assert_close(labelled.latents, sample.latents, atol=1e-3, rtol=1e-3)


def test_what_a_tanh_cannot_be_put_on_is_refused(tmp_path: Path) -> None:
    for action, what in ((Space(n=3), "discrete"), (Space((2,), -math.inf, math.inf), "without bounds")):
        with pytest.raises(ModelError, match=f"model.squash .*actions are {what}"):
            policy(action, squash=True)
    with pytest.raises(ConfigError, match=r"model.std \(mlp_policy\): 'fixed': use free or state"):
        MLPPolicyConfig(std="fixed")  # type: ignore[arg-type]
    model, module = policy(squash=True)
    model.export(iter(module.state_dict().items()), tmp_path)
    with pytest.raises(
        ModelError, match=r"model.squash \(mlp_policy\): False: the policy in .* made with True"
    ):
        policy(path=str(tmp_path))
    again = policy(squash=True, path=str(tmp_path))[0].module()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in module.state_dict().items())
