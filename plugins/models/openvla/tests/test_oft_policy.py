"""Acting, and judging what was acted, against sequences spelt out one after the other.

Axes: N environments, K slots of a decision, V bins.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.api import Space
from rlinf_core.errors import ModelError
from rlinf_core.types import Sampling

sys.path.insert(0, str(Path(__file__).parent))
import oft_support as support

WANT = frozenset({"logprobs", "entropy", "values"})
LEVELS: list[tuple[Any, int]] = [("chunk", 1), ("action", 3), ("token", 6)]
FIRST = 320  # the lowest action token of the preset: bytes, words and names lie below
HEADS: list[Any] = ["tokens", "continuous"]


def peer(model: Any, module: Any, drawn_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of what was drawn, and the states of the first slots."""
    states = support.spelt_out(model, module, 6)
    if module.action_head is None:
        logits = module.language_model.lm_head(states)[..., FIRST : FIRST + 16]
        return torch.distributions.Categorical(logits=logits).log_prob(drawn_NK - FIRST), states[:, 0]
    means = torch.stack([module.action_head(states[:, 2 * c : 2 * c + 2].flatten(1)) for c in range(3)], 1)
    laplace = torch.distributions.Laplace(means.flatten(1), model.config.noise)
    return laplace.log_prob(drawn_NK), states[:, 0]


@pytest.mark.parametrize("head", HEADS)
def test_actions_and_logprobs_are_those_of_the_sequence_spelt_out(head: Any) -> None:
    model = support.small("token", head=head, noise=1.0)
    module = support.spread(model.module(1))
    sample = model.act(module, support.shown(), support.SEEDS)
    assert sample.latents.shape == (4, 6)
    expected, _ = peer(model, module, sample.latents)
    assert expected.std() > 0.3
    torch.testing.assert_close(sample.logprobs_NK, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sample.logprobs_N, expected.sum(1), atol=1e-5, rtol=1e-5)
    middle = sample.latents.double()
    if head == "tokens":  # 16 edges, 2/15 apart: the highest id is the lowest middle, -1 + 1/15
        assert sample.latents.min() >= FIRST
        assert sample.latents.max() < FIRST + 16
        middle = (336 - sample.latents.double() - 1).clamp(0, 14) * 2 / 15 - 1 + 1 / 15
    actions = (0.5 + middle).unflatten(1, (3, 2)).float()  # between -0.5 and 1.5
    torch.testing.assert_close(sample.actions, actions)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("level", "each"), LEVELS)
def test_training_judges_what_was_drawn_and_leaves_out_what_was_not_executed(
    level: Any, each: int, head: Any
) -> None:
    model = support.small(level, head=head, noise=1.0, valued=True)
    module = support.spread(model.module(1))
    seen = support.shown()
    sample = model.act(module, seen, support.SEEDS)
    executed = np.array([[True, True, True], [True, False, False], [True, True, False], [True, True, True]])
    whole = support.trajectory(seen, sample, each)
    cut = support.trajectory(seen, sample, each, executed)
    short = support.trajectory(support.shown(1), support.first(sample), each)
    outputs = model.policy_outputs(module, model.collate([short, whole, cut], width=4 * each + 2), WANT)
    assert outputs.logprobs_BT.shape == (3, 4 * each + 2)
    assert not outputs.logprobs_BT[:, 4 * each :].any()
    assert not outputs.logprobs_BT[0, each:].any()
    expected, first_NE = peer(model, module, sample.latents)
    kept = torch.from_numpy(executed).repeat_interleave(2, 1)
    for row, drawn_NK in ((1, expected), (2, expected * kept)):
        positions = drawn_NK.reshape(4 * each, -1).sum(1)
        torch.testing.assert_close(outputs.logprobs_BT[row, : 4 * each], positions, atol=1e-5, rtol=1e-5)
    acted = sample.logprobs_N[:, None] if level == "chunk" else sample.logprobs_NK
    torch.testing.assert_close(outputs.logprobs_BT[1, : 4 * each], acted.flatten(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs.logprobs_BT[0, :each], outputs.logprobs_BT[1, :each])
    values = module.value_head(first_NE).squeeze(1)
    assert values.std() > 1e-3
    torch.testing.assert_close(
        outputs.values_BT[1, : 4 * each], values.repeat_interleave(each), atol=1e-5, rtol=0
    )
    alone = model.policy_outputs(module, model.collate([whole]), frozenset({"values"}))
    torch.testing.assert_close(alone.values_BT[0], outputs.values_BT[1, : 4 * each])
    assert not alone.logprobs_BT.requires_grad


@pytest.mark.parametrize("detached", [False, True])
def test_a_value_head_leaves_what_it_reads_alone_if_its_input_is_detached(detached: bool) -> None:
    kept, model = (
        support.small("token", valued=True, detach_critic_input=each) for each in (False, detached)
    )
    seen = support.shown()
    module = support.spread(model.module(1))
    inputs = model.collate([support.trajectory(seen, model.act(module, seen, support.SEEDS), 6)])
    outputs = model.policy_outputs(module, inputs, WANT)
    torch.testing.assert_close(outputs.values_BT, kept.policy_outputs(module, inputs, WANT).values_BT)
    (outputs.values_BT**2).sum().backward(retain_graph=True)
    moved = {name.partition(".")[0] for name, each in module.named_parameters() if each.grad is not None}
    assert moved == {"value_head"} if detached else moved > {"value_head", "projector", "language_model"}
    outputs.logprobs_BT.sum().backward()
    assert module.projector.fc1.weight.grad.abs().sum() > 0


def test_entropies_are_those_of_bins_and_of_laplace() -> None:
    for head in HEADS:
        model = support.small("token", head=head, noise=0.2)
        module = support.spread(model.module(1))
        seen = support.shown()
        sample = model.act(module, seen, support.SEEDS)
        outputs = model.policy_outputs(
            module, model.collate([support.trajectory(seen, sample, 6)]), WANT - {"values"}
        )
        expected = torch.full((24,), 1.0 + math.log(0.4))  # 1 + log(2 * scale)
        if head == "tokens":
            logits = module.language_model.lm_head(support.spelt_out(model, module, 6))
            bins = torch.distributions.Categorical(logits=logits[..., FIRST : FIRST + 16])
            expected = bins.entropy().flatten()
        torch.testing.assert_close(outputs.entropy_BT[0], expected, atol=1e-5, rtol=0)


def test_a_later_slot_changes_an_earlier_one_and_so_does_how_many_there_are() -> None:
    model = support.small("token")
    module = support.spread(model.module(1))

    def logprobs(changed: int | None) -> torch.Tensor:
        def add(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            embedded = kwargs["inputs_embeds"].clone()
            if changed is not None:
                embedded[0, changed] += 1.0
            return args, {**kwargs, "inputs_embeds": embedded}

        handle = module.language_model.model.register_forward_pre_hook(add, with_kwargs=True)
        seen = support.shown(1)
        states = model._slots(module, seen, *ids_of(model, 1))
        handle.remove()
        found: torch.Tensor = module.logits(states)[0]
        return found

    plain = logprobs(None)
    prompt = len(model.prompts.ids(support.TEXTS[0]))
    behind_last = 32 + 1 + prompt + 6 - 1  # the position of the last slot
    later = logprobs(behind_last)
    assert (later - plain)[0].abs().max() > 1e-3  # the first slot saw it
    longer = support.small("token", chunk=4)
    sample = model.act(module, support.shown(), support.SEEDS, greedy=True)
    other = longer.act(module, support.shown(), support.SEEDS, greedy=True)
    assert (sample.logprobs_NK[:, :2] - other.logprobs_NK[:, :2]).abs().max() > 1e-3


def ids_of(model: Any, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    from rlinf_model_openvla.decisions import padded

    return padded([model.prompts.ids(text) for text in support.TEXTS[:rows]])


def test_padding_is_seen_by_nobody() -> None:
    model = support.small("token")
    module = support.spread(model.module(1))
    seen, (ids, lengths) = support.shown(), ids_of(model, 4)
    plain = model._slots(module, seen, ids, lengths)
    wide = torch.nn.functional.pad(ids, (0, 9), value=77)  # other tokens, and more of them
    at = torch.arange(wide.shape[1])
    scrambled = torch.where(at < lengths[:, None], wide, 55)
    torch.testing.assert_close(model._slots(module, seen, scrambled, lengths), plain, atol=1e-5, rtol=1e-5)


def test_every_input_matters_and_pictures_are_told_apart_by_their_order() -> None:
    model = support.small("token")
    module = support.spread(model.module(1))
    seen = support.shown()
    plain = model.act(module, seen, support.SEEDS).logprobs_NK
    for name in seen:
        changed = model.act(module, {**seen, name: seen[name].flip(0)}, support.SEEDS)
        assert (changed.logprobs_NK - plain).abs().max() > 1e-2, name
    swapped = support.small("token", cameras=("top", "wrist")).act(module, seen, support.SEEDS)
    assert (swapped.logprobs_NK - plain).abs().max() > 1e-2


def test_states_beyond_the_bound_are_cut_to_it() -> None:
    model = support.small("token")
    module = support.spread(model.module(1))
    seen = support.shown()
    cut = {**seen, "state": seen["state"].clamp(-2.0, 2.0)}
    assert not torch.equal(cut["state"], seen["state"])
    both = [model.act(module, each, support.SEEDS).logprobs_NK for each in (seen, cut)]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("head", HEADS)
def test_a_row_draws_from_its_own_seed_whatever_stands_beside_it(head: Any) -> None:
    model = support.small("token", head=head)
    module = support.spread(model.module(1))
    seen = support.shown()
    together = model.act(module, seen, support.SEEDS)
    for n, seed in enumerate(support.SEEDS):
        alone = model.act(module, {name: value[n : n + 1] for name, value in seen.items()}, [seed])
        torch.testing.assert_close(alone.latents[0], together.latents[n], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone.logprobs_NK[0], together.logprobs_NK[n], atol=1e-5, rtol=1e-5)
    other = model.act(module, seen, [seed + 1 for seed in support.SEEDS])
    assert (other.latents != together.latents).any(1).all()


def test_draws_have_their_probabilities() -> None:
    from rlinf_model_openvla.draws import inverse_transform, laplace

    from rlinf_core.rl.noise import uniforms

    draws = torch.from_numpy(uniforms(range(4000), 1))[:, 0]
    bins = inverse_transform(torch.tensor([0.5, 0.2, 0.3]).log().expand(4000, 3), draws)
    shares = torch.bincount(bins, minlength=3) / 4000
    assert shares.tolist() == pytest.approx([0.5, 0.2, 0.3], abs=0.03)
    assert laplace(torch.tensor([0.5, 0.25, 0.875])).tolist() == pytest.approx(
        [0.0, -math.log(2.0), math.log(4.0)]
    )
    numbers = laplace(draws)
    assert float((numbers.abs() > 1.0).double().mean()) == pytest.approx(math.exp(-1.0), abs=0.03)


def test_greedy_actions_are_the_likeliest() -> None:
    model = support.small("token")
    module = support.spread(model.module(1))
    greedy = model.act(module, support.shown(), support.SEEDS, greedy=True)
    logits = module.language_model.lm_head(support.spelt_out(model, module, 6))[..., FIRST : FIRST + 16]
    assert torch.equal(greedy.latents, logits.argmax(-1) + FIRST)
    numbers = support.small("token", head="continuous", noise=0.5)
    module = support.spread(numbers.module(1))
    greedy = numbers.act(module, support.shown(), support.SEEDS, greedy=True)
    assert greedy.logprobs_NK.flatten().tolist() == [0.0] * 24  # -log(2 * 0.5), at the middle


def test_cloning_numbers_is_the_l1_loss() -> None:
    model = support.small(head="continuous", noise=0.1)
    module = model.module(1)
    seen = support.shown()
    told = model.act(module, seen, support.SEEDS, greedy=True)
    wanted = told.actions + torch.tensor([0.3, -0.2])  # of a range of 2: as much in units of -1..1
    labelled = model.label(wanted, support.SEEDS)
    row = support.trajectory(seen, labelled)
    logprobs = model.policy_outputs(module, model.collate([row]), frozenset({"logprobs"})).logprobs_BT
    # three actions a decision: -(0.3 + 0.2) / 0.1 and twice -log(0.2) each
    expected = 3 * (-5.0 - 2 * math.log(0.2))
    assert logprobs[0].tolist() == pytest.approx([expected] * 4, abs=1e-3)


def test_half_precision_in_acting_stays_near() -> None:
    model = support.small(act_dtype="bfloat16")
    module = support.spread(model.module(1))
    seen = support.shown()
    sample = model.act(module, seen, support.SEEDS)
    inputs = model.collate([support.trajectory(seen, sample)])
    judged = model.policy_outputs(module, inputs, frozenset({"logprobs"})).logprobs_BT[0]
    assert 1e-5 < (judged - sample.logprobs_N).abs().max() < 0.5


def test_what_does_not_fit_is_refused_by_name() -> None:
    model = support.small()
    module = model.module()
    row = support.trajectory(support.shown(), model.act(module, support.shown(), support.SEEDS))
    with pytest.raises(ModelError, match=r"model openvla_oft draws tokens at model.temperature"):
        model.policy_outputs(module, model.collate([row]), WANT, Sampling(temperature=0.7))
    with pytest.raises(ModelError, match=r"openvla_oft: values were asked for, but .* no value head"):
        model.policy_outputs(module, model.collate([row]), WANT)
    row.latents = None
    with pytest.raises(ModelError, match="openvla_oft: row 0 holds no latents"):
        model.collate([row])
    with pytest.raises(
        ModelError, match=r"model.cameras .openvla_oft.: .* no camera 'side'; it has: top, wrist"
    ):
        support.small(cameras=("top", "side"))
    with pytest.raises(ModelError, match=r"several cameras; name those to be seen, .*: top, wrist"):
        support.small(cameras=())
    with pytest.raises(ModelError, match=r"model.action_dims .openvla_oft.: \[0, 5\]: the model writes 2"):
        support.small(action_dims=(0, 5))
    with pytest.raises(ModelError, match="model openvla_oft writes continuous actions"):
        support.small(action=Space(n=3))
    unbound = support.OpenVLAOFT(support.OpenVLAOFTConfig(preset="tiny", proprio="state"))
    with pytest.raises(
        ModelError, match=r"model.proprio .*: the simulator shows no state; it shows images/a"
    ):
        unbound.bind({"images/a": Space(shape=(8, 8, 3))}, support.ACTION)
    with pytest.raises(ModelError, match="sees a simulator's state; name one with --simulator"):
        support.OpenVLAOFT(support.OpenVLAOFTConfig(preset="tiny", proprio="state")).module()
