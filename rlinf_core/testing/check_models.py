"""Conformance checks of models. Axes: B rows, T decision steps, V vocabulary, N environments."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_core.api import Model, Space, Want
from rlinf_core.rl.logprobs import gather_logprobs
from rlinf_core.testing.fakes import sample_of
from rlinf_core.testing.subject import CheckSkipped, Subject, expect
from rlinf_core.types import Experience, Sample, Trajectory

LOGPROBS: frozenset[Want] = frozenset({"logprobs"})
STATE_SIZE, ACTION_SIZE, CHUNK = 3, 2, 1
SEEDS = [1, 2, 3]


def check_models_seed(subject: Subject) -> None:
    """`module(seed)` gives the same weights for one seed, and leaves torch's generator alone."""
    model = _model(subject)
    before = torch.random.get_rng_state()
    first, second = model.module(3).state_dict(), model.module(3).state_dict()
    expect(torch.equal(before, torch.random.get_rng_state()), "module() moves the global generator; fork it")
    for name, value in first.items():
        expect(torch.equal(value, second[name]), f"weight {name} differs between two modules of one seed")


def check_models_outputs(subject: Subject) -> None:
    """Outputs are finite float32 [B, T] with gradient; entropies are not negative."""
    model, rows = _model(subject), _rows(subject)
    module = model.module(0)
    outputs = model.policy_outputs(module, model.collate(rows), frozenset({"logprobs", "entropy"}))
    mask_BT = _mask(rows)
    shape = tuple(outputs.logprobs_BT.shape)
    expect(
        shape == tuple(mask_BT.shape), f"logprobs_BT has shape {shape}; the rows are {tuple(mask_BT.shape)}"
    )
    expect(outputs.logprobs_BT.dtype == torch.float32, "logprobs_BT is not float32")
    expect(torch.isfinite(outputs.logprobs_BT[mask_BT]).all(), "a log-probability is not finite")
    expect(outputs.logprobs_BT.requires_grad, "logprobs_BT has no gradient")
    expect(outputs.entropy_BT is not None, "entropy was wanted and is None")
    if _is_text(subject) and outputs.entropy_BT is not None:
        expect((outputs.entropy_BT[mask_BT] > -1e-5).all(), "an entropy over tokens is negative")


def check_models_values(subject: Subject) -> None:
    """A model that says it has a value head gives values, the same in acting and in training."""
    if not subject.spec.provides.value_head:  # type: ignore[attr-defined]
        raise CheckSkipped("the model has no value head")
    model, rows = _model(subject), _rows(subject)
    outputs = model.policy_outputs(model.module(0), model.collate(rows), frozenset({"logprobs", "values"}))
    expect(outputs.values_BT is not None, "the spec says value_head=True, but values_BT is None")
    if outputs.values_BT is not None:
        expect(outputs.values_BT.shape == outputs.logprobs_BT.shape, "values_BT is not [B, T]")
        if not _is_text(subject):
            _check_acting_values(model, outputs.values_BT)


@torch.no_grad()
def _check_acting_values(model: Model, values_BT: torch.Tensor) -> None:
    """The first of the rows goes through all states."""
    sample = model.act(model.module(0), {"state": _states()}, SEEDS)
    if sample.values_N is None:
        expect(False, "the spec says value_head=True, but act() gives no values_N")
    else:
        _expect_close(values_BT[0], sample.values_N, "values of act() and policy_outputs differ")


@torch.no_grad()
def check_models_padding(subject: Subject) -> None:
    """What stands beside a row, and how wide it is padded, change nothing."""
    model, rows = _model(subject), _rows(subject)
    module, mask_BT = model.module(0), _mask(rows)
    plain_BT = model.policy_outputs(module, model.collate(rows), LOGPROBS).logprobs_BT
    wide = model.policy_outputs(module, model.collate(rows, mask_BT.shape[1] + 3), LOGPROBS).logprobs_BT
    expect(wide.shape[1] == mask_BT.shape[1] + 3, "collate(rows, width) does not pad to `width`")
    _expect_close(
        wide[:, :-3][mask_BT], plain_BT[mask_BT], "three more padded steps change log-probabilities"
    )
    for i, row in enumerate(rows):
        alone_T = model.policy_outputs(module, model.collate([row]), LOGPROBS).logprobs_BT[0]
        _expect_close(alone_T, plain_BT[i, : len(row.mask)], f"row {i} alone and in a batch differ")


@torch.no_grad()
def check_models_decoder(subject: Subject) -> None:
    """The decoder's log-probabilities of a response are those of `policy_outputs`, also after a refresh."""
    _text_only(subject)
    model, rows = _model(subject), _rows(subject)
    module = model.module(0).eval()
    decoder = model.decoder(module, len(rows), model.processor().context_length)
    for round_ in ("at first", "in slots used before", "after new weights and refresh()"):
        if round_.startswith("after"):
            module.load_state_dict(model.module(1).state_dict())
            decoder.refresh()
        outputs = model.policy_outputs(module, model.collate(rows), LOGPROBS).logprobs_BT
        for i, expected in enumerate(_decoded(decoder, rows)):
            _expect_close(
                expected, outputs[i, : len(expected)], f"decoder and policy_outputs differ {round_}, row {i}"
            )


def check_models_text(subject: Subject) -> None:
    """The text processor closes responses by an end id, and decodes without special tokens."""
    _text_only(subject)
    processor = _model(subject).processor()
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
    if _is_text(subject):
        raise CheckSkipped("a text model does not act")
    model = _model(subject)
    module = model.module(0)
    state_NS = _states()
    first = model.act(module, {"state": state_NS}, SEEDS)
    again = model.act(module, {"state": state_NS[1:2]}, SEEDS[1:2])
    expect(torch.equal(first.actions[1:2], again.actions), "an action depends on the environments beside it")
    greedy = [
        model.act(module, {"state": state_NS}, seeds, greedy=True).actions for seeds in (SEEDS, [7, 8, 9])
    ]
    expect(torch.equal(*greedy), "greedy actions depend on the seed")
    rows = [_trajectory(state_NS[n : n + 1], first.actions[n : n + 1], n) for n in range(len(SEEDS))]
    outputs = model.policy_outputs(module, model.collate(rows), LOGPROBS)
    _expect_close(outputs.logprobs_BT[:, 0], first.logprobs_N, "act() and policy_outputs differ")


def check_models_export(subject: Subject) -> None:
    """`export` writes files."""
    model = _model(subject)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export"
        model.export(iter(model.module(0).state_dict().items()), path)
        expect(any(item.is_file() for item in path.rglob("*")), "export() wrote no file")


def _model(subject: Subject) -> Model:
    model: Model = subject.build()
    if not _is_text(subject):
        model.bind({"state": Space(shape=(STATE_SIZE,))}, _action_space(subject))
    return model


def _action_space(subject: Subject) -> Space:
    continuous = subject.spec.provides.continuous_actions  # type: ignore[attr-defined]
    return Space(shape=(ACTION_SIZE,)) if continuous else Space(n=4)


def _is_text(subject: Subject) -> bool:
    return bool(subject.spec.provides.modality == "text")  # type: ignore[attr-defined]


def _text_only(subject: Subject) -> None:
    if not _is_text(subject):
        raise CheckSkipped("an embodied model has no decoder and no text")


@torch.no_grad()
def _rows(subject: Subject) -> list[Experience]:
    """Rows of different lengths: random tokens that no end id is among, or actions the model drew."""
    model = _model(subject)
    if _is_text(subject):
        return _text_rows(model)
    module = model.module(0)
    rows: list[Experience] = []
    for n, length in enumerate((3, 1, 2)):
        states = _states()[:length]
        rows.append(_trajectory(states, model.act(module, {"state": states}, SEEDS[:length]).actions, n))
    return rows


def _text_rows(model: Model) -> list[Experience]:
    decoder = model.decoder(model.module(0), 1, model.processor().context_length)
    vocabulary = decoder.prefill([0], [np.array([1])]).shape[-1]
    special = {model.processor().pad_id, *model.processor().eos_ids}
    plain = np.array([token for token in range(vocabulary) if token not in special])
    random = np.random.default_rng(0)
    sizes = ((3, 5), (6, 2), (1, 4))
    return [sample_of(random.choice(plain, p), random.choice(plain, t), i) for i, (p, t) in enumerate(sizes)]


def _decoded(decoder: Any, rows: list[Experience]) -> list[torch.Tensor]:  # Any: a Decoder
    """Log-probabilities of the rows' responses, all slots advanced together while they last."""
    samples = [row for row in rows if isinstance(row, Sample)]
    slots = list(range(len(samples)))
    logits_RV = decoder.prefill(slots, [sample.prompt.token_ids for sample in samples])
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


def _states() -> torch.Tensor:
    return torch.randn(3, STATE_SIZE, generator=torch.Generator().manual_seed(0))


def _trajectory(states: torch.Tensor, actions: torch.Tensor, index: int) -> Trajectory:
    length = len(states)
    return Trajectory(
        group=index,
        replica=0,
        seed=index,
        mask=np.ones(length, dtype=bool),
        logprobs=np.zeros(length, dtype=np.float32),
        weight_version=0,
        observations={"state": states.numpy()},
        actions=actions.numpy(),
    )


def _mask(rows: list[Experience]) -> torch.Tensor:
    lengths_B = torch.tensor([len(row.mask) for row in rows])
    return torch.arange(int(lengths_B.max()))[None] < lengths_B[:, None]


def _expect_close(one: torch.Tensor, other: torch.Tensor, message: str) -> None:
    gap = float((one - other).abs().max())
    expect(gap < 1e-4, f"{message} (by {gap:.2e}, allowed 1e-4)")
