"""Log-probabilities against transformers' own forward, however rows are batched, decoded or sharded."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from rlinf_core.types import Sampling

sys.path.insert(0, str(Path(__file__).parent))
import hf_vlm_support as support

WANT = frozenset({"logprobs", "entropy"})
PRESETS = pytest.mark.parametrize("preset", support.PRESETS)


@PRESETS
@pytest.mark.parametrize("shared", [True, False], ids=["prompts once", "row by row"])
def test_log_probabilities_are_those_of_transformers(preset: str, shared: bool) -> None:
    model = support.model(preset)
    module: Any = model.module(1).eval()
    if not shared:
        recompute(model, module)
    batch = support.rows(model)
    found = model.policy_outputs(module, model.collate(batch, width=7), WANT)
    assert found.logprobs_BT.shape == (5, 7)
    for row, logprobs_T in zip(batch, found.logprobs_BT, strict=True):
        expected_T = support.by_transformers(model, module, row)
        torch.testing.assert_close(logprobs_T[: len(expected_T)], expected_T, rtol=0, atol=1e-5)
        assert not logprobs_T[len(expected_T) :].any()


@PRESETS
def test_gradients_do_not_depend_on_how_prompts_are_read(preset: str) -> None:
    model = support.model(preset)
    found = []
    for shared in (True, False):
        module = model.module(1).eval()
        if not shared:
            recompute(model, module)
        outputs = model.policy_outputs(module, model.collate(support.rows(model)), WANT)
        (outputs.logprobs_BT * torch.arange(1.0, 6.0)[:, None]).sum().backward()  # type: ignore[no-untyped-call]
        found.append({name: part.grad for name, part in module.named_parameters()})
    for name, grad in found[0].items():
        assert (grad is None) == (found[1][name] is None), name
        if grad is not None:
            torch.testing.assert_close(grad, found[1][name], rtol=1e-4, atol=1e-5, msg=name)
    assert any("vision" in name or "visual" in name for name, grad in found[0].items() if grad is not None)


def recompute(model: Any, module: Any) -> None:
    """As the backend does for gradient checkpointing."""
    for block in model.blocks(module):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


@PRESETS
def test_decoding_gives_the_log_probabilities_of_the_trainer(preset: str) -> None:
    model = support.model(preset)
    module = model.module(1).eval()
    batch = support.rows(model)
    expected_BT = model.policy_outputs(module, model.collate(batch), WANT).logprobs_BT.detach()
    decoder = model.decoder(module, 8, 256)
    slots = [6, 1, 4]
    logits = [decoder.prefill_prompts(slots, [batch[i].prompt for i in (3, 0, 2)])]
    logits[0] = torch.cat([logits[0], decoder.prefill_prompts([0, 2], [batch[4].prompt, batch[1].prompt])])
    order = {6: 3, 1: 0, 4: 2, 0: 4, 2: 1}  # slot -> row
    slots, now, step = list(order), logits[0], 0
    while slots:
        tokens_R = torch.tensor([int(batch[order[slot]].response_ids[step]) for slot in slots])
        chosen_R = now.log_softmax(-1).gather(1, tokens_R[:, None])[:, 0]
        wanted_R = torch.stack([expected_BT[order[slot], step] for slot in slots])
        torch.testing.assert_close(chosen_R, wanted_R, rtol=0, atol=1e-5)
        step += 1
        going = [slot for slot in slots if len(batch[order[slot]].response_ids) > step]
        decoder.release([slot for slot in slots if slot not in going])
        tokens_R = tokens_R[[slots.index(slot) for slot in going]]
        slots = going[::-1]  # the order in which slots are named is the caller's
        if slots:
            now = decoder.step(slots, tokens_R.flip(0))


@PRESETS
def test_the_picture_decides_what_is_said(preset: str) -> None:
    model = support.model(preset)
    module = model.module(1).eval()
    row = support.rows(model)[0]
    other = replace(row, prompt=replace(row.prompt, images=(support.picture(99),)))
    both_BT = model.policy_outputs(module, model.collate([row, other]), WANT).logprobs_BT
    assert (both_BT[0] - both_BT[1]).abs().max() > 1e-3
    alone_BT = model.policy_outputs(module, model.collate([other]), WANT).logprobs_BT
    torch.testing.assert_close(both_BT[1:], alone_BT, rtol=0, atol=1e-5)


def test_positions_of_qwen_count_rows_and_columns_of_the_picture() -> None:
    """A start token, 4 x 4 merged patches, an end token and text. The picture takes the four positions
    behind the start in each direction; what follows goes on at 5, responses where the prompt ends."""
    from rlinf_model_hf_vlm.forward import _prompt_positions

    model = support.model("tiny-qwen2_5_vl")
    inputs = model.collate(support.rows(model)[:1])
    ids_1P = inputs["prompt_ids"]
    places_3P, next_1 = _prompt_positions(model.module(0), inputs, torch.ones_like(ids_1P).bool())
    tail = [5, 6, 7, 8, 9]  # the end of the picture, and the question in four tokens
    grid = range(1, 5)
    assert places_3P[0, 0].tolist() == [0, *([1] * 16), *tail]
    assert places_3P[1, 0].tolist() == [0, *(row for row in grid for _ in grid), *tail]
    assert places_3P[2, 0].tolist() == [0, *(column for _ in grid for column in grid), *tail]
    assert next_1.tolist() == [10]


@PRESETS
def test_a_place_for_an_image_in_a_response_is_no_image(preset: str) -> None:
    """A model may write the token; both ways of reading responses, and decoding, take it for padding."""
    model = support.model(preset)
    module: Any = model.module(1).eval()
    image = module.config.image_token_id
    batch = [support.sample(support.prompt(model, 0), [20, image, 30])]
    once_BT = model.policy_outputs(module, model.collate(batch), WANT).logprobs_BT.detach()
    decoder = model.decoder(module, 1, 256)
    steps = [decoder.prefill_prompts([0], [batch[0].prompt])]
    steps += [decoder.step([0], torch.tensor([token])) for token in (20, image)]
    recompute(model, module)
    rows_BT = model.policy_outputs(module, model.collate(batch), WANT).logprobs_BT.detach()
    decoded_T = torch.cat(steps).log_softmax(-1)[[0, 1, 2], [20, image, 30]]
    torch.testing.assert_close(once_BT, rows_BT, rtol=0, atol=1e-5)
    torch.testing.assert_close(once_BT[0], decoded_T, rtol=0, atol=1e-5)


def test_no_response_ends_before_its_least_length() -> None:
    model = support.model()
    module = model.module(1)
    end = min(model.processor().eos_ids)
    batch = [support.sample(support.prompt(model, 0), [20, end])]
    sampling = Sampling(min_new_tokens=2, temperature=0.5)
    found_T = model.policy_outputs(module, model.collate(batch), WANT, sampling).logprobs_BT[0]
    assert found_T[1] == -torch.inf
    assert torch.isfinite(found_T[0])


def test_values_come_from_the_state_before_the_token() -> None:
    model = support.model()
    model.add_value_head()
    module: Any = model.module(1)
    with torch.no_grad():
        module.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    row = support.rows(model)[2]
    found = model.policy_outputs(module, model.collate([row]), frozenset({"values"}))
    pixels = model.processor().image_processor(images=[list(row.prompt.images)], return_tensors="pt")  # type: ignore[attr-defined]
    ids_1L = torch.tensor([[*row.prompt.token_ids, *row.response_ids]])
    hidden_LE = module.model(input_ids=ids_1L, pixel_values=pixels["pixel_values"]).last_hidden_state[0]
    expected_T = (hidden_LE @ module.value_head.weight[0])[len(row.prompt.token_ids) - 1 : -1]
    assert found.values_BT is not None
    torch.testing.assert_close(found.values_BT[0], expected_T, rtol=0, atol=1e-5)


def test_rows_without_pictures_stand_beside_others() -> None:
    model = support.model("tiny-qwen3_vl")
    module = model.module(1)
    plain = support.sample(
        replace(support.prompt(model, 0), images=(), token_ids=np.array([20, 30])), [40, 41]
    )
    mixed_BT = model.policy_outputs(module, model.collate([plain, *support.rows(model)]), WANT).logprobs_BT
    alone_BT = model.policy_outputs(module, model.collate([plain]), WANT).logprobs_BT
    torch.testing.assert_close(mixed_BT[:1, :2], alone_BT, rtol=0, atol=1e-5)
