"""The perceptron policy: acting and training agree, rows draw from their own seeds, export comes back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.model import MLPPolicy

from rlinf_core.api import Space
from rlinf_core.errors import ConfigError, ModelError
from rlinf_core.types import Sampling, Trajectory

BOX = Space(shape=(2,), low=-0.5, high=1.5)
DISCRETE = Space(n=3)
WANT = frozenset({"logprobs", "entropy"})
SEEDS = [11, 2**62, 13, 14]


def policy(action: Space, **options: Any) -> MLPPolicy:
    model = MLPPolicy(MLPPolicyConfig(hidden=(8,), **options))
    model.bind({"state": Space(shape=(3,))}, action)
    return model


def spread(module: torch.nn.Module) -> torch.nn.Module:
    """Weights far enough from zero that outputs differ between states."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module


def states(rows: int) -> torch.Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))


def trajectory(observed: Any, actions: Any, executed: Any = None) -> Trajectory:
    steps = len(actions)
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(steps, dtype=bool),
        logprobs=np.zeros(steps, dtype=np.float32),
        weight_version=0,
        observations={"state": np.asarray(observed, dtype=np.float32)},
        actions=np.asarray(actions),
        executed=executed,
    )


@pytest.mark.parametrize(("action", "options"), [(BOX, {"chunk": 3}), (BOX, {}), (DISCRETE, {})])
def test_acting_and_training_give_the_same_logprobs(action: Space, options: dict[str, Any]) -> None:
    model = policy(action, **options)
    module = spread(model.module())
    sample = model.act(module, {"state": states(4)}, SEEDS)
    row = trajectory(states(4).numpy(), sample.actions.numpy())
    short = trajectory(states(4)[:2].numpy(), sample.actions[:2].numpy())
    outputs = model.policy_outputs(module, model.collate([short, row], width=6), WANT)
    assert outputs.logprobs_BT.shape == (2, 6)
    torch.testing.assert_close(outputs.logprobs_BT[1, :4], sample.logprobs_N, atol=1e-6, rtol=0)
    torch.testing.assert_close(outputs.logprobs_BT[0, :2], sample.logprobs_N[:2], atol=1e-6, rtol=0)


def test_gaussian_logprobs_and_entropy_equal_those_of_torch_in_the_action_space() -> None:
    model = policy(BOX, chunk=2, init_log_std=-1.0)
    module = spread(model.module())
    sample = model.act(module, {"state": states(4)}, SEEDS)
    with torch.no_grad():
        means = 0.5 + module({"state": states(4)})[0].view(
            4, 2, 2
        )  # the box is centred at 0.5 with half-range 1
        peer = torch.distributions.Normal(means, module.log_std.exp().view(2, 2))
    torch.testing.assert_close(sample.logprobs_NC, peer.log_prob(sample.actions).sum(-1))
    row = trajectory(states(4).numpy(), sample.actions.numpy())
    outputs = model.policy_outputs(module, model.collate([row]), WANT)
    torch.testing.assert_close(outputs.entropy_BT[0], peer.entropy().sum((-1, -2)))


def test_a_wider_box_scales_actions_and_keeps_densities_right() -> None:
    narrow, wide = policy(Space(shape=(2,), low=-1, high=1)), policy(Space(shape=(2,), low=-10, high=10))
    module = spread(narrow.module())
    small = narrow.act(module, {"state": states(4)}, SEEDS)
    large = wide.act(module, {"state": states(4)}, SEEDS)
    torch.testing.assert_close(large.actions, 10 * small.actions)
    torch.testing.assert_close(large.logprobs_N, small.logprobs_N - 2 * np.log(10), atol=1e-5, rtol=0)


def test_actions_that_were_not_executed_count_neither_in_logprobs_nor_in_entropy() -> None:
    model = policy(BOX, chunk=3)
    module = model.module()
    sample = model.act(module, {"state": states(2)}, SEEDS[:2])
    executed = np.array([[True, True, True], [True, False, False]])
    row = trajectory(states(2).numpy(), sample.actions.numpy(), executed)
    outputs = model.policy_outputs(module, model.collate([row]), WANT)
    torch.testing.assert_close(outputs.logprobs_BT[0, 0], sample.logprobs_N[0])
    torch.testing.assert_close(outputs.logprobs_BT[0, 1], sample.logprobs_NC[1, 0])
    torch.testing.assert_close(outputs.entropy_BT[0, 1], outputs.entropy_BT[0, 0] / 3)


@pytest.mark.parametrize("action", [BOX, DISCRETE])
def test_a_row_draws_from_its_own_seed_whatever_its_neighbours(action: Space) -> None:
    model = policy(action)
    module = spread(model.module())
    together = model.act(module, {"state": states(4)}, SEEDS).actions
    for i, seed in enumerate(SEEDS):
        alone = model.act(module, {"state": states(4)[i : i + 1]}, [seed]).actions
        torch.testing.assert_close(alone[0], together[i])
    if action.n is None:
        other = model.act(module, {"state": states(4)}, [seed + 1 for seed in SEEDS]).actions
        assert (other != together).all()


@pytest.mark.parametrize(("action", "hidden"), [(Space(shape=(1,)), 64), (BOX, 8), (DISCRETE, 32)])
def test_an_action_is_the_same_to_the_last_bit_whatever_is_decided_beside_it(
    action: Space, hidden: int
) -> None:
    model = MLPPolicy(MLPPolicyConfig(hidden=(hidden, hidden)))
    model.bind({"state": Space(shape=(3,))}, action)
    module = spread(model.module())
    together = model.act(module, {"state": states(13)}, range(13))
    for first in range(13):
        rows = model.act(module, {"state": states(13)[first:]}, range(first, 13))
        assert torch.equal(rows.actions, together.actions[first:])
        assert torch.equal(rows.logprobs_N, together.logprobs_N[first:])


def test_discrete_actions_are_drawn_with_their_probabilities() -> None:
    model = policy(DISCRETE)
    module = model.module()
    with torch.no_grad():
        module.layers[-1].weight.zero_()
        module.layers[-1].bias.copy_(torch.tensor([0.5, 0.2, 0.3]).log())
    drawn = model.act(module, {"state": torch.zeros(20_000, 3)}, range(20_000)).actions
    counts = Counter(drawn.tolist())
    assert [counts[a] / 20_000 for a in range(3)] == pytest.approx([0.5, 0.2, 0.3], abs=0.015)


def test_greedy_takes_the_mode() -> None:
    model = policy(BOX)
    module = spread(model.module())
    with torch.no_grad():
        modes = 0.5 + module({"state": states(4)})[0].view(4, 1, 2)
    torch.testing.assert_close(model.act(module, {"state": states(4)}, SEEDS, greedy=True).actions, modes)


def test_the_same_seed_makes_the_same_new_policy_and_another_a_different_one() -> None:
    model = policy(BOX)
    first, again, other = model.module(3), model.module(3), model.module(4)
    assert torch.equal(first.layers[0].weight, again.layers[0].weight)
    assert not torch.equal(first.layers[0].weight, other.layers[0].weight)


def test_an_exported_policy_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model = policy(BOX, chunk=2)
    module = spread(model.module())
    model.export(iter(module.state_dict().items()), tmp_path)
    again = policy(BOX, chunk=2, path=str(tmp_path)).module(seed=9)
    for name, tensor in module.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    with pytest.raises(
        ModelError, match=r"holds a policy of other sizes: layers.2.bias is \(4,\), this run needs"
    ):
        policy(BOX, path=str(tmp_path)).module()
    with pytest.raises(ModelError, match=r"model.path .mlp_policy.: cannot read"):
        policy(BOX, path=str(tmp_path / "absent")).module()


def test_unusable_spaces_and_options_are_refused_by_name() -> None:
    with pytest.raises(
        ModelError, match="needs a 'state' or 'images/CAMERA' observation; the simulator offers touch"
    ):
        MLPPolicy(MLPPolicyConfig()).bind({"touch": Space(shape=(8,))}, BOX)
    with pytest.raises(
        ModelError, match=r"model.chunk .mlp_policy.: 4: the simulator's actions are discrete"
    ):
        policy(DISCRETE, chunk=4)
    with pytest.raises(ModelError, match="takes its sizes from a simulator"):
        MLPPolicy(MLPPolicyConfig()).module()
    model = policy(BOX)
    row = trajectory(np.zeros((1, 3)), np.zeros((1, 1, 2), dtype=np.float32))
    with pytest.raises(ModelError, match=r"leave sampling.temperature at 1"):
        model.policy_outputs(model.module(), model.collate([row]), WANT, Sampling(temperature=0.7))
    for options in ({"hidden": (0,)}, {"activation": "gelu"}, {"chunk": 0}, {"init_log_std": 5.0}):
        with pytest.raises(ConfigError, match=f"model.{next(iter(options))}"):
            MLPPolicyConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("action", "options"), [(BOX, {"chunk": 2, "squash": True}), (DISCRETE, {})])
def test_rows_padded_once_are_those_padded_for_each_batch(action: Space, options: dict[str, Any]) -> None:
    model = policy(action, **options)
    model.set_logprob_level("action")
    rows = []
    for length in (5, 2, 3):
        observed, seeds = states(length), range(length)
        sample = model.act(model.module(), {"state": observed}, seeds)
        row = trajectory(observed, sample.actions.numpy())
        each = 1 if sample.logprobs_NK is None else sample.logprobs_NK.shape[1]
        row.mask, row.logprobs = np.ones(length * each, bool), np.zeros(length * each, np.float32)
        row.latents = None if sample.latents is None else sample.latents.numpy()
        rows.append(row)
    collator = model.collator(rows)
    assert collator is not None
    for chosen in ([0, 1, 2], [2, 1], [1]):
        width = max(len(rows[i].mask) for i in chosen)
        expected = model.collate([rows[i] for i in chosen], width)
        found = collator(torch.tensor(chosen), width)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_pictures_are_not_held_twice() -> None:
    model = MLPPolicy(MLPPolicyConfig())
    model.bind({"images/main": Space(shape=(36, 36, 3), low=0.0, high=255.0)}, BOX)
    assert model.collator([]) is None
