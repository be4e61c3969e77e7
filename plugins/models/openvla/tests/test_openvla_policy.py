"""Acting, and judging what was acted, against the plain computation: one sequence after the other, no cache.

Axes: N environments, K tokens of a decision.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_openvla.network import OpenVLANetwork

from rlinf_core.errors import ModelError
from rlinf_core.types import Sampling

sys.path.insert(0, str(Path(__file__).parent))
import openvla_support as support

WANT = frozenset({"logprobs", "entropy", "values"})
LEVELS: list[tuple[Any, int]] = [("chunk", 1), ("action", 3), ("token", 6)]


@torch.no_grad()
def peer(model: Any, module: Any, tokens_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits `[N, K, 256]` and the states before the first token, from sequences spelt out as the contract
    says: first token, patches, question, lone space, action tokens; and the ids of the first prompt."""
    seen = support.shown()
    logits, states = [], []
    embed = module.language_model.get_input_embeddings()
    for n, text in enumerate(support.TEXTS):
        asked = f"In: What action should the robot take to {text.lower()}?\nOut:"
        ids = [1, *model.prompts.tokenizer.encode(asked, add_special_tokens=False).ids, 259]
        pixels = model.pictures.pixels(seen["images/top"][n : n + 1])
        patches = module.projector(module.vision_backbone(pixels))[0]
        sequence = torch.cat([embed(torch.tensor(ids[:1])), patches, embed(torch.tensor(ids[1:]))])
        sequence = torch.cat([sequence, embed(tokens_NK[n, :-1])])
        found = module.language_model(inputs_embeds=sequence[None], output_hidden_states=True)
        start = 16 + len(ids) - 1
        logits.append(found.logits[0, start:, 576 - 256 : 576])
        states.append(found.hidden_states[-1][0, start])
    return torch.stack(logits), torch.stack(states), torch.tensor(ids)


def test_a_prompt_is_one_bos_the_question_in_small_letters_and_a_lone_space() -> None:
    model = support.tiny()
    ids = model.prompts.ids("Go LEFT")
    left = [3 + ord(letter) for letter in "go"] + [259] + [3 + ord(letter) for letter in "left"]
    assert list(ids) == [1, 260, *left, 261, 259]
    assert model.prompts.tokenizer.decode(list(ids)) == (
        "In: What action should the robot take to go left?\nOut: "
    )


@pytest.mark.parametrize("temperature", [1.0, 1.6])
def test_tokens_and_logprobs_are_those_of_the_full_sequence_without_cache(temperature: float) -> None:
    model = support.tiny("token", chunk=3, temperature=temperature)
    module = support.spread(model.module(1))
    sample = model.act(module, support.shown(), support.SEEDS)
    tokens_NK = sample.latents
    assert tokens_NK.shape == (4, 6)
    assert tokens_NK.min() >= 576 - 256
    assert tokens_NK.max() < 576
    logits_NKV, _, _ = peer(model, module, tokens_NK)
    distribution = torch.distributions.Categorical(logits=logits_NKV / temperature)
    expected = distribution.log_prob(tokens_NK - 320)
    assert expected.std() > 0.3
    torch.testing.assert_close(sample.logprobs_NK, expected, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(sample.logprobs_N, expected.sum(1), atol=1e-5, rtol=1e-6)
    middle = (576 - tokens_NK.double() - 1).clamp(0, 254) * 2 / 255 - 1 + 1 / 255
    actions = (0.5 + middle).unflatten(1, (3, 2)).float()  # between -0.5 and 1.5
    torch.testing.assert_close(sample.actions, actions)


@pytest.mark.parametrize(("level", "each"), LEVELS)
def test_training_judges_what_was_drawn_and_leaves_out_what_was_not_executed(level: Any, each: int) -> None:
    model = support.tiny(level, chunk=3, valued=True)
    module: Any = support.spread(model.module(1))
    seen = support.shown()
    sample = model.act(module, seen, support.SEEDS)
    executed = np.array([[True, True, True], [True, False, False], [True, True, False], [True, True, True]])
    whole = support.trajectory(seen, sample, each)
    cut = support.trajectory(seen, sample, each, executed)
    short = support.trajectory(support.shown(1), type(sample)(**{**vars(sample), **first(sample)}), each)
    outputs = model.policy_outputs(module, model.collate([short, whole, cut], width=4 * each + 2), WANT)
    assert outputs.logprobs_BT.shape == (3, 4 * each + 2)
    assert not outputs.logprobs_BT[:, 4 * each :].any()
    assert not outputs.logprobs_BT[0, each:].any()
    logits_NKV, states_NE, _ = peer(model, module, sample.latents)
    distribution = torch.distributions.Categorical(logits=logits_NKV)
    for found, expected in (
        (outputs.logprobs_BT, distribution.log_prob(sample.latents - 320)),
        (outputs.entropy_BT, distribution.entropy()),
    ):
        kept = torch.from_numpy(executed).repeat_interleave(2, 1)
        for row, tokens_NK in ((1, expected), (2, expected * kept)):
            positions = tokens_NK.view(4 * each, -1).sum(1)
            torch.testing.assert_close(found[row, : 4 * each], positions, atol=1e-5, rtol=1e-6)
        torch.testing.assert_close(found[0, :each], found[1, :each], atol=1e-5, rtol=1e-6)
    acted = sample.logprobs_N[:, None] if level == "chunk" else sample.logprobs_NK
    torch.testing.assert_close(outputs.logprobs_BT[1, : 4 * each], acted.flatten(), atol=1e-5, rtol=1e-6)
    values = module.value_head(states_NE).squeeze(1)
    assert values.std() > 1e-3
    torch.testing.assert_close(
        outputs.values_BT[1, : 4 * each], values.repeat_interleave(each), atol=1e-5, rtol=0
    )
    assert not outputs.values_BT[0, each:].any()


def first(sample: Any) -> dict[str, Any]:
    """The first decision of a sample."""
    return {name: value[:1] for name, value in vars(sample).items() if value is not None}


def test_values_alone_are_the_same_and_judge_no_token() -> None:
    model = support.tiny("token", valued=True)
    module = support.spread(model.module(1))
    seen = support.shown()
    inputs = model.collate([support.trajectory(seen, model.act(module, seen, support.SEEDS), 2)])
    both, alone = (model.policy_outputs(module, inputs, want) for want in (WANT, frozenset({"values"})))
    torch.testing.assert_close(alone.values_BT, both.values_BT, atol=1e-6, rtol=0)
    assert not alone.logprobs_BT.any()
    assert not alone.logprobs_BT.requires_grad
    with pytest.raises(ModelError, match=r"no value head: call add_value_head\(\) before module\(\)"):
        support.tiny("token").policy_outputs(support.tiny().module(), inputs, WANT)


def test_a_row_draws_from_its_own_seed_whatever_stands_beside_it() -> None:
    model = support.tiny("token", chunk=2)
    module = support.spread(model.module(1))
    seen = support.shown()
    together = model.act(module, seen, support.SEEDS)
    for n, seed in enumerate(support.SEEDS):
        alone = model.act(module, {name: value[n : n + 1] for name, value in seen.items()}, [seed])
        assert torch.equal(alone.latents[0], together.latents[n])
        torch.testing.assert_close(alone.logprobs_NK[0], together.logprobs_NK[n], atol=1e-5, rtol=1e-6)
    other = model.act(module, seen, [seed + 1 for seed in support.SEEDS])
    assert (other.latents != together.latents).any(1).all()
    greedy = model.act(module, seen, support.SEEDS, greedy=True)
    logits_NKV, _, _ = peer(model, module, greedy.latents)
    assert torch.equal(greedy.latents, logits_NKV.argmax(-1) + 320)


def test_tokens_are_drawn_with_their_probabilities() -> None:
    class Fixed(OpenVLANetwork):
        def logits(self, states: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.5, 0.2, 0.3]).log().expand(*states.shape[:-1], 3)

    model = support.tiny()
    module: Any = model.module()
    module.__class__ = Fixed
    seen = {name: value[:1].expand(1500, *value.shape[1:]) for name, value in support.shown().items()}
    tokens = model.act(module, seen, range(1500)).latents[:, 1]
    counts = Counter((tokens - 320).tolist())
    assert [counts[bin_] / 1500 for bin_ in range(3)] == pytest.approx([0.5, 0.2, 0.3], abs=0.045)


def test_the_instruction_of_the_settings_serves_where_the_simulator_gives_none() -> None:
    model = support.tiny(instruction="go left")
    module = support.spread(model.module(1))
    seen = support.shown(1)
    alone = model.act(module, {"images/top": seen["images/top"]}, [3])
    assert torch.equal(alone.latents, model.act(module, seen, [3]).latents)
    inputs = model.collate([support.trajectory({"images/top": seen["images/top"]}, alone)])
    judged = model.policy_outputs(module, inputs, frozenset({"logprobs"}))
    torch.testing.assert_close(judged.logprobs_BT[0], alone.logprobs_N, atol=1e-5, rtol=1e-6)


def test_picture_and_instruction_both_matter() -> None:
    model = support.tiny("token")
    module = support.spread(model.module(1))
    seen = support.shown()
    plain = model.act(module, seen, support.SEEDS).logprobs_NK
    for name in seen:
        changed = model.act(module, {**seen, name: seen[name].flip(0)}, support.SEEDS)
        assert (changed.logprobs_NK - plain).abs().max() > 1e-2


def test_half_precision_in_acting_stays_near() -> None:
    model = support.tiny(act_dtype="bfloat16")
    module = support.spread(model.module(1))
    seen = support.shown()
    sample = model.act(module, seen, support.SEEDS)
    inputs = model.collate([support.trajectory(seen, sample)])
    judged = model.policy_outputs(module, inputs, frozenset({"logprobs"})).logprobs_BT[0]
    assert 1e-5 < (judged - sample.logprobs_N).abs().max() < 0.3


def test_rows_and_samplings_that_do_not_fit_are_refused() -> None:
    model = support.tiny()
    module = model.module()
    row = support.trajectory(support.shown(), model.act(module, support.shown(), support.SEEDS))
    inputs = model.collate([row])
    with pytest.raises(
        ModelError, match=r"draws tokens at model.temperature; leave sampling.temperature at 1"
    ):
        model.policy_outputs(module, inputs, WANT, Sampling(temperature=0.7))
    row.latents = None
    with pytest.raises(ModelError, match="row 0 holds no latents: it was not made by this model"):
        model.collate([row])
