"""The flow as a policy: peers of its network, acting against training, seeds, levels and values.

Axes: B rows, T positions, N environments, K noisy steps, C actions of a chunk, A action dimensions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlinf_core.errors import ConfigError, ModelError
from rlinf_core.types import Sampling

sys.path.insert(0, str(Path(__file__).parent))
import pi0_ranks as support
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.flow import Flow

from rlinf_core.api import Space

KINDS: dict[str, dict[str, Any]] = {
    "sde": {},
    "one": {"noisy_steps": "one", "noise_level": 0.8},
    "learned": {"noise": "learned"},
    "all": {"train": "all", "steps": 2},
}
SEEDS = [11, 2**62, 13, 14]
STEPS, CHUNK, SIZE = 4, 8, 32  # of the preset


def peer_inputs(model: Any, seen: dict[str, Tensor]) -> dict[str, Tensor]:
    """What transformers' own forward takes. Any: a bound Pi0."""
    inputs = model._bound.collate_shown(seen)
    pictures = model._bound.pictures(inputs)
    return {
        "input_ids": inputs["tokens"].clamp(min=0),
        "attention_mask": (inputs["tokens"] >= 0).long(),
        "pixel_values": pictures,
        "pixel_attention_mask": torch.ones(pictures.shape[:2], dtype=torch.bool),
        "state": model._bound.state(inputs),
    }


def test_greedy_actions_are_those_that_transformers_samples_from_the_middle_of_the_noise() -> None:
    model = support.flow()
    module = support.wake(model.module())
    seen = support.shown()
    noise = torch.zeros(4, CHUNK, SIZE)
    units = module.sample_actions(**peer_inputs(model, seen), noise=noise)
    greedy = model.act(module, seen, SEEDS, greedy=True).actions
    assert float(units.std()) > 0.05
    expected = 0.5 + 1.0 * units[:, :4, :3]  # the box is centred at 0.5 with half-range 1
    torch.testing.assert_close(greedy, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["sde", "learned"])
def test_log_probabilities_are_those_of_steps_around_the_velocities_of_transformers(kind: str) -> None:
    """Each recorded state against a normal number around one step from the one before it."""
    model = support.flow(**KINDS[kind])
    module = support.wake(model.module())
    seen = support.shown()
    sample = model.act(module, seen, SEEDS)
    assert sample.latents is not None
    states = sample.latents[:, 1:].view(4, STEPS + 1, CHUNK, SIZE)
    expected = torch.zeros(4, 4, 3)
    for k in range(STEPS):
        time = torch.full((4,), 1 - k / STEPS)
        with torch.no_grad():
            velocity = module(**peer_inputs(model, seen), noise=states[:, k], timestep=time).logits
        if kind == "sde":
            step = Flow(STEPS, 0.5).sde(states[:, k], velocity, torch.full((4,), k))
            mean, std = step.mean_MCA, step.std_MCA
        else:
            mean, std = states[:, k] - velocity / STEPS, states[:, k + 1] - states[:, k]
            std = _learned_deviation(model, module, seen, states[:, k], time)
        peer = torch.distributions.Normal(mean, std).log_prob(states[:, k + 1])
        expected += peer[:, :4, :3]
    torch.testing.assert_close(sample.logprobs_NC, expected.sum(-1), atol=2e-4, rtol=1e-5)
    torch.testing.assert_close(sample.logprobs_N, expected.sum((1, 2)), atol=5e-4, rtol=1e-5)
    torch.testing.assert_close(sample.actions, 0.5 + states[:, -1, :4, :3], atol=1e-6, rtol=0)


def _learned_deviation(model: Any, module: Any, seen: Any, noisy: Tensor, time: Tensor) -> Tensor:
    """Between the bounds, by the head on what transformers' action expert says. Any: see `peer_inputs`."""
    found: list[Tensor] = []
    hook = module.model.dit.register_forward_hook(lambda *args: found.append(args[2].last_hidden_state))
    with torch.no_grad():
        module(**peer_inputs(model, seen), noise=noisy, timestep=time)
        share = torch.sigmoid(module.noise_head(found[0][:, 1:]))
    hook.remove()
    assert float(share.std()) > 0.01
    return 0.08 * (0.16 / 0.08) ** share


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("level", "each"), [("chunk", 1), ("action", 4), ("token", 12)])
def test_acting_and_training_give_the_same_logprobs(kind: str, level: str, each: int) -> None:
    model = support.flow(level=level, valued=True, **KINDS[kind])
    module = support.wake(model.module())
    seen = support.shown()
    sample = model.act(module, seen, SEEDS)
    drawn = sample.logprobs_N[:, None] if level == "chunk" else sample.logprobs_NK
    assert drawn is not None
    rows = [support.episode(sample, seen, slice(*ends), each) for ends in ((0, 1), (1, 4))]
    for row in rows:
        row.executed = None
    outputs = model.policy_outputs(module, model.collate(rows, 4 * each), support.WANT)
    assert outputs.logprobs_BT.shape == (2, 4 * each)
    torch.testing.assert_close(outputs.logprobs_BT[0, :each], drawn[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs.logprobs_BT[1, : 3 * each], drawn[1:].flatten(), atol=1e-5, rtol=1e-5)
    assert not outputs.logprobs_BT[0, each:].any()


def test_actions_that_were_not_executed_count_neither_in_logprobs_nor_in_entropy() -> None:
    model = support.flow()
    module = support.wake(model.module())
    seen = support.shown()
    sample = model.act(module, seen, SEEDS)
    row = support.episode(sample, seen, slice(0, 2))  # the last decision's first two actions of four
    outputs = model.policy_outputs(module, model.collate([row]), support.WANT - {"values"})
    assert sample.logprobs_NC is not None
    assert outputs.entropy_BT is not None
    torch.testing.assert_close(
        outputs.logprobs_BT[0, 1], sample.logprobs_NC[1, :2].sum(), atol=1e-5, rtol=1e-5
    )
    assert outputs.entropy_BT[0, 1].item() == pytest.approx(outputs.entropy_BT[0, 0].item() / 2, rel=1e-5)


def test_with_one_noisy_step_the_others_follow_the_ode_and_do_not_count() -> None:
    """64 environments choose all four steps; the step's two states differ by its noise, and what comes of
    the second without noise is the action."""
    model = support.flow(noisy_steps="one")
    module = support.wake(model.module())
    seen = {name: tensor[:1].expand(64, *tensor.shape[1:]) for name, tensor in support.shown().items()}
    sample = model.act(module, seen, list(range(64)))
    assert sample.latents is not None
    first, states = sample.latents[:, 0].long(), sample.latents[:, 1:].view(64, 2, CHUNK, SIZE)
    counts = torch.bincount(first, minlength=STEPS)
    assert counts.min() > 4
    n = int((first == STEPS - 1).nonzero()[0])
    torch.testing.assert_close(sample.actions[n], 0.5 + states[n, 1, :4, :3], atol=1e-6, rtol=0)
    n = int((first == STEPS - 2).nonzero()[0])
    alone = {name: tensor[n : n + 1] for name, tensor in seen.items()}
    with torch.no_grad():
        velocity = module(
            **peer_inputs(model, alone), noise=states[n, 1:], timestep=torch.tensor([0.25])
        ).logits
    torch.testing.assert_close(
        sample.actions[n], 0.5 + (states[n, 1] - velocity[0] / 4)[:4, :3], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_draws_from_its_own_seed_whatever_its_neighbours(kind: str) -> None:
    model = support.flow(**KINDS[kind])
    module = support.wake(model.module())
    seen = support.shown()
    together = model.act(module, seen, SEEDS)
    alone = model.act(module, {name: tensor[2:3] for name, tensor in seen.items()}, SEEDS[2:3])
    torch.testing.assert_close(alone.actions[0], together.actions[2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone.logprobs_N[0], together.logprobs_N[2], atol=1e-4, rtol=1e-5)
    again = model.act(module, seen, SEEDS)
    assert torch.equal(again.actions, together.actions)
    other = model.act(module, seen, [12, *SEEDS[1:]])
    assert not torch.allclose(other.actions[0], together.actions[0], atol=1e-2)
    assert torch.equal(other.actions[1:], together.actions[1:])


def test_values_are_a_head_on_the_state_token_whatever_was_drawn() -> None:
    model = support.flow(valued=True)
    module = support.wake(model.module())
    rows = support.rows_of(model, module)
    outputs = model.policy_outputs(module, model.collate(rows), support.WANT)
    other = [support.episode(s, support.shown(6), slice(0, 3)) for s in [_drawn_otherwise(model, module)]]
    again = model.policy_outputs(module, model.collate(other), frozenset({"values"}))
    assert outputs.values_BT is not None
    assert again.values_BT is not None
    torch.testing.assert_close(again.values_BT[0], outputs.values_BT[0], atol=1e-5, rtol=1e-5)
    assert not again.logprobs_BT.any()
    found: list[Tensor] = []
    hook = module.model.dit.register_forward_hook(lambda *args: found.append(args[2].last_hidden_state))
    seen = support.shown(6)
    with torch.no_grad():
        module(**peer_inputs(model, seen), noise=torch.randn(6, CHUNK, SIZE), timestep=torch.full((6,), 0.3))
        expected = module.value_head(found[0][:, 0]).squeeze(-1)
    hook.remove()
    torch.testing.assert_close(outputs.values_BT[0], expected[:3], atol=1e-5, rtol=1e-5)
    assert float(expected.std()) > 0.01


def _drawn_otherwise(model: Any, module: Any) -> Any:
    """Any: a model, its module and a sample."""
    return model.act(module, support.shown(6), [7] * 6)


@pytest.mark.parametrize("name", ["instruction", "images/left", "images/wrist", "state"])
def test_everything_that_is_shown_counts(name: str) -> None:
    model = support.flow(valued=True)
    module = support.wake(model.module())
    seen = support.shown()
    changed = {**seen, name: seen[name].flip(0)}
    before, after = (model.act(module, views, SEEDS).actions for views in (seen, changed))
    assert float((before - after).abs().max()) > 1e-4


def test_the_gradient_reaches_heads_expert_and_the_vision_language_model() -> None:
    model = support.flow(valued=True, train="all", noise="learned")
    module = support.wake(model.module())
    rows = support.rows_of(model, module)
    outputs = model.policy_outputs(module, model.collate(rows), support.WANT)
    (outputs.logprobs_BT.sum() + outputs.values_BT.sum()).backward()
    names = (
        "value_head",
        "noise_head",
        "action_out_proj",
        "embed_action_time.state_proj",
        "model.dit.layers.0",
    )
    names += ("model.vlm.vision_tower.encoder.layers.0", "model.vlm.language_model.layers.1.self_attn.k_proj")
    for name in names:
        reached = [p.grad for n, p in module.named_parameters() if n.startswith(name)]
        assert any(gradient is not None and bool(gradient.any()) for gradient in reached), name


def test_a_new_value_head_says_0_and_new_noise_lies_in_the_middle_of_its_bounds() -> None:
    model = support.flow(valued=True, noise="learned", noise_bounds=(0.1, 0.4))
    module = model.module()
    rows = support.rows_of(model, module)
    outputs = model.policy_outputs(module, model.collate(rows), support.WANT)
    assert not outputs.values_BT.any()
    numbers = 4 * 3 * STEPS  # of a whole chunk
    assert outputs.entropy_BT[0, 0].item() == pytest.approx(numbers * (np.log(0.2) + 1.4189385), rel=1e-5)


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"model\.path \(a checkpoint's directory\) or model\.preset=tiny"):
        support.Pi0(Pi0Config())
    with pytest.raises(ModelError, match="actions are discrete"):
        support.flow(Space(n=3))
    with pytest.raises(ModelError, match="actions have 33, and the checkpoint's max_action_dim is 32"):
        support.flow(Space(shape=(33,)))
    with pytest.raises(ModelError, match=r"model\.chunk is 9, and the checkpoint's chunk_size is 8"):
        support.flow(chunk=9)
    with pytest.raises(ModelError, match=r"model\.cameras .* no camera 'top'; it has left, wrist"):
        support.flow(cameras=("top",))
    for options in ({"noise": "loud"}, {"noise_level": 0.0}, {"noise_bounds": (0.2, 0.1)}, {"steps": -1}):
        with pytest.raises(ConfigError, match=f"model.{next(iter(options))}"):
            Pi0Config(preset="tiny", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="keep one"):
        Pi0Config(preset="tiny", path="/somewhere")


def test_rows_that_the_model_did_not_draw_and_a_sampling_transform_are_refused() -> None:
    model = support.flow(valued=True)
    module = model.module()
    rows = support.rows_of(model, module)
    with pytest.raises(ModelError, match=r"leave sampling\.temperature at 1"):
        model.policy_outputs(module, model.collate(rows), support.WANT, Sampling(temperature=0.5))
    rows[1].latents = None
    inputs = model.collate(rows)
    with pytest.raises(ModelError, match="these rows have none"):
        model.policy_outputs(module, inputs, support.WANT)
    assert model.policy_outputs(module, inputs, frozenset({"values"})).values_BT is not None
