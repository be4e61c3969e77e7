"""Conformance checks of models. Axes: B rows, T decision steps, V vocabulary, N environments."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rlinf_core.api import ActionSample, Model, PolicyOutputs, Want
from rlinf_core.errors import ModelError
from rlinf_core.rl.logprobs import gather_logprobs
from rlinf_core.testing.model_rows import (
    SEEDS,
    bound_model,
    expect_close,
    is_text,
    mask_of,
    part,
    rows_of,
    seen_rows,
    shown,
    trajectory,
    with_positions,
)
from rlinf_core.testing.subject import CheckFailedError, CheckSkipped, Subject, expect
from rlinf_core.types import Experience, Sample

LOGPROBS: frozenset[Want] = frozenset({"logprobs"})


def check_models_seed(subject: Subject) -> None:
    """`module(seed)` gives the same weights for one seed, and leaves torch's generator alone."""
    model = bound_model(subject)
    before = torch.random.get_rng_state()
    first, second = model.module(3).state_dict(), model.module(3).state_dict()
    expect(torch.equal(before, torch.random.get_rng_state()), "module() moves the global generator; fork it")
    for name, value in first.items():
        expect(torch.equal(value, second[name]), f"weight {name} differs between two modules of one seed")


def check_models_outputs(subject: Subject) -> None:
    """Outputs are finite float32 [B, T] with gradient; entropies are not negative."""
    model, rows = bound_model(subject), rows_of(subject)
    module = model.module(0)
    outputs = model.policy_outputs(module, model.collate(rows), frozenset({"logprobs", "entropy"}))
    mask_BT = mask_of(rows)
    shape = tuple(outputs.logprobs_BT.shape)
    expect(
        shape == tuple(mask_BT.shape), f"logprobs_BT has shape {shape}; the rows are {tuple(mask_BT.shape)}"
    )
    expect(outputs.logprobs_BT.dtype == torch.float32, "logprobs_BT is not float32")
    expect(torch.isfinite(outputs.logprobs_BT[mask_BT]).all(), "a log-probability is not finite")
    expect(outputs.logprobs_BT.requires_grad, "logprobs_BT has no gradient")
    expect(outputs.entropy_BT is not None, "entropy was wanted and is None")
    if is_text(subject) and outputs.entropy_BT is not None:
        expect((outputs.entropy_BT[mask_BT] > -1e-5).all(), "an entropy over tokens is negative")


def check_models_values(subject: Subject) -> None:
    """A model that says it has a value head gives values: alone or beside log-probabilities, the same at
    every call, and without them its policy is as it was."""
    if not subject.spec.provides.value_head:  # type: ignore[attr-defined]
        raise CheckSkipped("the model has no value head")
    model, rows = bound_model(subject), rows_of(subject)
    plain_BT = model.policy_outputs(model.module(0), model.collate(rows), LOGPROBS).logprobs_BT
    model.add_value_head()
    module, mask_BT = _valued(model), mask_of(rows)
    asked: tuple[set[Want], ...] = ({"values"}, {"values"}, {"logprobs", "values"})
    found = [model.policy_outputs(module, model.collate(rows), frozenset(want)) for want in asked]
    values = [outputs.values_BT for outputs in found if outputs.values_BT is not None]
    expect(len(values) == 3, "values were wanted after add_value_head(), but values_BT is None")
    expect(values[0].shape == mask_BT.shape, "values_BT is not [B, T]")
    expect(values[0].dtype == torch.float32, "values_BT is not float32")
    expect(torch.isfinite(values[0][mask_BT]).all(), "a value is not finite")
    expect(torch.equal(values[0], values[1]), "values differ between two calls")
    expect(values[0].requires_grad, "values_BT has no gradient")
    expect(not found[0].logprobs_BT.any(), "logprobs_BT is not 0 where only values are wanted")
    expect_close(values[2][mask_BT], values[0][mask_BT], "values alone and beside log-probabilities differ")
    expect_close(found[2].logprobs_BT, plain_BT, "a value head changes log-probabilities")


def check_models_demonstrations(subject: Subject) -> None:
    """A model that learns from demonstrations labels actions at every level as it records its own."""
    if not subject.spec.provides.demonstrations:  # type: ignore[attr-defined]
        raise CheckSkipped("the model does not learn from demonstrations")
    seen = shown(subject)
    for level in sorted(subject.spec.provides.logprob_levels):  # type: ignore[attr-defined]
        model = bound_model(subject)
        model.set_logprob_level(level)
        module = model.module(0)
        drawn = model.act(module, seen, SEEDS)
        expect(
            drawn.actions.dim() == 1 or drawn.actions.shape[1] == model.chunk,
            f"chunk is {model.chunk}, but act draws actions of shape {list(drawn.actions.shape)}",
        )
        _check_label(model, module, seen, drawn, level)


def _check_label(
    model: Model, module: nn.Module, seen: Mapping[str, torch.Tensor], drawn: ActionSample, level: str
) -> None:
    labelled = model.label(drawn.actions, SEEDS)
    for name in ("logprobs_NK", "latents"):
        own, given = getattr(drawn, name), getattr(labelled, name)
        expect(
            (own is None) == (given is None) and (own is None or own.shape == given.shape),
            f"label gives {name} of another shape than act does at level {level}",
        )
    each = 1 if labelled.logprobs_NK is None else labelled.logprobs_NK.shape[1]
    row = with_positions(trajectory(seen, labelled, 0), each)
    logprobs_BT = model.policy_outputs(module, model.collate([row]), LOGPROBS).logprobs_BT
    expect(torch.isfinite(logprobs_BT).all(), "the log-probability of a demonstration is not finite")
    expect(logprobs_BT.requires_grad, "the log-probability of a demonstration has no gradient")


def _valued(model: Model) -> nn.Module:
    """A module whose head does not say 0 of everything, as one may before it is trained."""
    module = model.module(0)
    head = model.value_head(module)
    if head is None:
        raise CheckFailedError("value_head(module) is None after add_value_head()")
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random))
    return module


def check_models_levels(subject: Subject) -> None:
    """At a finer level, the log-probabilities and entropies of a decision add up to the chunk's."""
    levels = sorted(subject.spec.provides.logprob_levels - {"chunk"})  # type: ignore[attr-defined]
    if is_text(subject) or not levels:
        raise CheckSkipped("the model has log-probabilities of whole chunks only")
    want: frozenset[Want] = frozenset({"logprobs", "entropy"})
    whole, rows = bound_model(subject), rows_of(subject)
    module = whole.module(0)
    chunks = whole.policy_outputs(module, whole.collate(rows), want)
    seen = shown(subject)
    drawn = whole.act(module, seen, SEEDS)
    for level in levels:
        model = bound_model(subject)
        model.set_logprob_level(level)
        _check_level(model, rows, chunks, model.act(module, seen, SEEDS), drawn, f"at level {level}")


@torch.no_grad()
def _check_level(
    model: Model,
    rows: list[Experience],
    chunks: PolicyOutputs,
    sample: ActionSample,
    drawn: ActionSample,
    where: str,
) -> None:
    module = model.module(0)
    expect(torch.equal(sample.actions, drawn.actions), f"{where}, act() draws other actions")
    if sample.logprobs_NK is None:
        expect(False, f"{where}, act() gives no logprobs_NK")
        return
    expect_close(
        sample.logprobs_NK.sum(1), drawn.logprobs_N, f"{where}, logprobs_NK do not sum to the chunk's"
    )
    each = sample.logprobs_NK.shape[1]
    finer = [with_positions(row, each) for row in rows]
    outputs = model.policy_outputs(module, model.collate(finer), frozenset({"logprobs", "entropy"}))
    shape = tuple(mask_of(finer).shape)
    expect(
        tuple(outputs.logprobs_BT.shape) == shape,
        f"{where}, logprobs_BT has shape {tuple(outputs.logprobs_BT.shape)}; {each} a decision make {shape}",
    )
    expect_close(
        outputs.logprobs_BT[0].view(-1, each),
        sample.logprobs_NK,
        f"{where}, act() and policy_outputs differ",
    )
    for name in ("logprobs_BT", "entropy_BT"):
        finer_BT, chunk_BT = getattr(outputs, name), getattr(chunks, name)
        summed_BT = finer_BT.view(*chunk_BT.shape, each).sum(-1)
        message = f"{where}, {name} of a decision does not add up to the chunk's"
        expect_close(summed_BT[mask_of(rows)], chunk_BT[mask_of(rows)], message)


@torch.no_grad()
def check_models_padding(subject: Subject) -> None:
    """What stands beside a row, and how wide it is padded, change nothing."""
    model, rows = bound_model(subject), rows_of(subject)
    module, mask_BT = model.module(0), mask_of(rows)
    plain_BT = model.policy_outputs(module, model.collate(rows), LOGPROBS).logprobs_BT
    wide = model.policy_outputs(module, model.collate(rows, mask_BT.shape[1] + 3), LOGPROBS).logprobs_BT
    expect(wide.shape[1] == mask_BT.shape[1] + 3, "collate(rows, width) does not pad to `width`")
    expect_close(wide[:, :-3][mask_BT], plain_BT[mask_BT], "three more padded steps change log-probabilities")
    for i, row in enumerate(rows):
        alone_T = model.policy_outputs(module, model.collate([row]), LOGPROBS).logprobs_BT[0]
        expect_close(alone_T, plain_BT[i, : len(row.mask)], f"row {i} alone and in a batch differ")
    _check_collator(model, rows)


def _check_collator(model: Model, rows: list[Experience]) -> None:
    """Where a model has one, it gives what `collate` gives, whichever rows in whatever order."""
    collator = model.collator(rows)
    if collator is None:
        return
    for chosen in ([len(rows) - 1, 0], [0], list(range(len(rows)))):
        width = max(len(rows[i].mask) for i in chosen)
        expected = model.collate([rows[i] for i in chosen], width)
        found = collator(torch.tensor(chosen), width)
        expect(
            found.keys() == expected.keys(), f"collator and collate give {sorted(found)}, {sorted(expected)}"
        )
        for name, value in expected.items():
            same = found[name].dtype == value.dtype and torch.equal(found[name], value)
            expect(same, f"{name} of rows {chosen} differs between collator and collate")


@torch.no_grad()
def check_models_decoder(subject: Subject) -> None:
    """The decoder's log-probabilities of a response are those of `policy_outputs`, also after a refresh."""
    _text_only(subject)
    model, rows = bound_model(subject), rows_of(subject)
    module = model.module(0).eval()
    decoder = model.decoder(module, len(rows), model.processor().context_length)
    for round_ in ("at first", "in slots used before", "after new weights and refresh()"):
        if round_.startswith("after"):
            module.load_state_dict(model.module(1).state_dict())
            decoder.refresh()
        outputs = model.policy_outputs(module, model.collate(rows), LOGPROBS).logprobs_BT
        for i, expected in enumerate(_decoded(decoder, rows)):
            expect_close(
                expected, outputs[i, : len(expected)], f"decoder and policy_outputs differ {round_}, row {i}"
            )


@torch.no_grad()
def check_models_images(subject: Subject) -> None:
    """A model that says it reads images does so, the same in decoding and training; others refuse them."""
    _text_only(subject)
    model = bound_model(subject)
    if not subject.spec.provides.images:  # type: ignore[attr-defined]
        try:
            seen_rows(model)
        except ModelError:
            return
        raise CheckFailedError("encode_with_images takes images; say so with `images=True` in `provides`")
    rows = seen_rows(model)
    module = model.module(0).eval()
    outputs_BT = model.policy_outputs(module, model.collate(rows), LOGPROBS).logprobs_BT
    gap = float((outputs_BT[0] - outputs_BT[1]).abs().max())
    expect(gap > 1e-6, "two pictures give the same log-probabilities; are they read?")
    decoder = model.decoder(module, len(rows), model.processor().context_length)
    for expected_BT, found in zip(outputs_BT, _decoded(decoder, list(rows)), strict=True):
        expect_close(found, expected_BT, "decoder and policy_outputs differ about prompts with images")


def check_models_text(subject: Subject) -> None:
    """The text processor closes responses by an end id, and decodes without special tokens."""
    _text_only(subject)
    processor = bound_model(subject).processor()
    expect(processor.eos_ids, "eos_ids is empty; responses would never end")
    expect(processor.context_length > 0, "context_length must be a positive number")
    ids = processor.encode_response("1 2")
    expect(ids and ids[-1] in processor.eos_ids, f"encode_response ends with {ids[-1:]}, not with an end id")
    expect(processor.encode_prompt("1 2"), "encode_prompt of a text gives no ids")
    text = processor.decode(ids)
    expect(processor.decode(ids[:-1]) == text, "decode() shows the end-of-sequence token")


@torch.no_grad()
def check_models_act(subject: Subject) -> None:
    """Actions depend on their row's seed alone, with the log-probabilities of `policy_outputs`."""
    if is_text(subject):
        raise CheckSkipped("a text model does not act")
    model = bound_model(subject)
    module = model.module(0)
    seen = shown(subject)
    first = model.act(module, seen, SEEDS)
    again = model.act(module, part(seen, slice(1, 2)), SEEDS[1:2])
    expect_close(first.actions[1:2], again.actions, "an action depends on the environments beside it")
    greedy = [model.act(module, seen, seeds, greedy=True).actions for seeds in (SEEDS, [7, 8, 9])]
    expect(torch.equal(*greedy), "greedy actions depend on the seed")
    rows = [trajectory(seen, first, n, slice(n, n + 1)) for n in range(len(SEEDS))]
    outputs = model.policy_outputs(module, model.collate(rows), LOGPROBS)
    expect_close(outputs.logprobs_BT[:, 0], first.logprobs_N, "act() and policy_outputs differ")


def check_models_export(subject: Subject) -> None:
    """`export` writes files."""
    model = bound_model(subject)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export"
        model.export(iter(model.module(0).state_dict().items()), path)
        expect(any(item.is_file() for item in path.rglob("*")), "export() wrote no file")


def _text_only(subject: Subject) -> None:
    if not is_text(subject):
        raise CheckSkipped("an embodied model has no decoder and no text")


def _decoded(decoder: Any, rows: list[Experience]) -> list[torch.Tensor]:  # Any: a Decoder
    """Log-probabilities of the rows' responses, all slots advanced together while they last."""
    samples = [row for row in rows if isinstance(row, Sample)]
    slots = list(range(len(samples)))
    logits_RV = decoder.prefill_prompts(slots, [sample.prompt for sample in samples])
    found: list[list[torch.Tensor]] = [[] for _ in samples]
    step = 0
    while slots:
        tokens_R = torch.tensor([int(samples[slot].response_ids[step]) for slot in slots])
        for slot, value in zip(slots, gather_logprobs(logits_RV, tokens_R), strict=True):
            found[slot].append(value)
        step += 1
        going = [i for i, slot in enumerate(slots) if len(samples[slot].response_ids) > step]
        decoder.release([slot for i, slot in enumerate(slots) if i not in going])
        slots = [slots[i] for i in going]
        if slots:
            logits_RV = decoder.step(slots, tokens_R[going])
    return [torch.stack(values) for values in found]
