"""A step whose rows come in units, in any order, gives the same bits, and the ordinary gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlinf_core.roles.ordering import Piece
from rlinf_core.roles.report import joined
from rlinf_core.roles.shared_update import SharedUpdate
from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.types import Sample

TERMS = ("algo.group_size=2", "algo.kl_coef=0.1", "algo.entropy_coef=0.01")
ALGORITHMS = {
    "grpo": ("algo=grpo", *TERMS),
    "dr_grpo": ("algo=dr_grpo", "algo.group_size=2", "algo.max_tokens_norm=8"),
    "gspo": ("algo=gspo", *TERMS),
    "rloo": ("algo=rloo", "algo.group_size=2"),
    "adapters with dropout": ("algo=grpo", *TERMS, "lora.rank=2", "lora.dropout=0.5"),
}


def groups_of(text_row: Callable[..., Sample], updater: Updater) -> list[list[Sample]]:
    """Four groups of two responses, one of which could not be scored; with the policy's log-probabilities."""
    random = np.random.default_rng(0)
    rows = []
    for i, n in enumerate((5, 3, 4, 2, 5, 8, 1, 3)):
        prompt = random.integers(3, 21, 2 + 9 * (i % 2)).tolist()
        ids = random.integers(3, 21, n).tolist()
        row = text_row(prompt, ids, reward=float(random.random()), group=4 + i // 2, replica=i % 2)
        rows.append(replace(row, error="no verdict", reward=None) if i == 5 else row)
    found = updater.estimate(rows, frozenset({"logprobs"})).logprobs_BT.numpy()
    for row, logprobs_T in zip(rows, found, strict=True):
        row.logprobs = logprobs_T[: len(row.mask)]
    return [rows[i : i + 2] for i in range(0, 8, 2)]


def weights(updater: Updater) -> dict[str, Tensor]:
    named = updater.trainer.policy.named()  # type: ignore[attr-defined]
    return {name: parameter.detach().clone() for name, parameter in named}


def shared(
    updater: Callable[..., Updater],
    text_row: Callable[..., Sample],
    name: str,
    order: Sequence[int],
    pieces: int = 1,
) -> tuple[Any, dict[str, Tensor]]:
    """What is reported, and the weights, of two steps whose units come in this order and back, each in so
    many pieces."""
    made = updater(*ALGORITHMS[name])
    told = []
    for step, numbers in enumerate((order, order[::-1])):
        groups = groups_of(text_row, made)
        update = SharedUpdate(made, step)
        for number, piece in itertools.product(numbers, range(pieces)[:: 1 - 2 * step]):
            update.add(groups[number], Piece(piece, pieces))
        (report,) = joined([update.finish()])
        told.append((report.sums, report.facts, report.peaks))
    return told, weights(made)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_order_of_units_changes_no_bit_of_weights_and_metrics(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], name: str, pieces: int
) -> None:
    told, expected = shared(updater, text_row, name, (0, 1, 2, 3), pieces)
    for order in ((3, 2, 1, 0), (1, 3, 0, 2)):
        again, found = shared(updater, text_row, name, order, pieces)
        assert again == told
        assert all(torch.equal(found[part], expected[part]) for part in expected)


@pytest.mark.parametrize("pieces", [1, 2, 3])  # the third of a group of two has no row
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "rloo"])
def test_a_shared_step_has_the_gradient_and_the_metrics_of_an_ordinary_one(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], name: str, pieces: int
) -> None:
    plain, made = updater(*ALGORITHMS[name]), updater(*ALGORITHMS[name])
    groups = groups_of(text_row, plain)
    step, update = StepUpdate(plain, 0), SharedUpdate(made, 0)
    if plain.algorithm.needs.reference:
        for group in groups:
            for row in group:
                found = plain.estimate([row], frozenset({"logprobs"}), reference=True)
                row.reference_logprobs = found.logprobs_BT.numpy()[0]
    step.add([row for group in groups for row in group])
    for group, piece in itertools.product(groups_of(text_row, made), range(pieces)):
        update.add(group, Piece(piece, pieces))
    (ordinary, expected), ((report,), found_) = (
        (step.finish(), moments(plain)),
        (joined([update.finish()]), moments(made)),
    )
    for part, moment in expected.items():
        assert float((found_[part] - moment).norm()) <= 1e-6 * float(moment.norm()), part
    assert report.facts == pytest.approx(ordinary.facts, rel=1e-5)
    del ordinary.sums["groups_of_one"]  # a share of the parts
    assert {key: report.sums[key] for key in ordinary.sums} == {
        key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in ordinary.sums.items()
    }


def moments(updater: Updater) -> dict[str, Tensor]:
    """Of the optimizer after one step: the gradient, but for a factor."""
    state = updater.trainer.optimizer.state()  # type: ignore[attr-defined]
    return {name: tensor for name, tensor in state.items() if name.startswith("exp_avg.") and tensor.any()}


@pytest.mark.parametrize(
    "words",
    [
        ("algo=grpo", *TERMS),
        ("algo=reinforce_pp", "algo.kl_coef=0.1"),  # over the batch: only the reference can be early
        ("algo=grpo", *TERMS, "train.mini_batches=2"),
    ],
    ids=str,
)
def test_a_run_on_one_device_learns_the_same_with_and_without_lending(
    tiny_run: Callable[..., Any], words: Sequence[str]
) -> None:
    told = []
    for dynamic in ("step", "in-step"):
        run = tiny_run(*words, f"schedule.dynamic={dynamic}", "optimizer.eps=1e-6")
        results = [run.step(step) for step in range(3)]
        told.append(([result.metrics for result in results], run.weights()))
    (plain, expected), (lent, found) = told
    for before, after in zip(plain, lent, strict=True):
        names = {key for key in before if key.startswith("train/")}
        assert {key: after[key] for key in names} == {
            key: pytest.approx(before[key], rel=1e-4, abs=1e-6) for key in names
        }
    for part in expected:
        assert float((found[part] - expected[part]).norm()) <= 1e-5 * float(expected[part].norm()), part


def test_a_unit_whose_loss_is_not_finite_leaves_the_whole_step_out_and_no_later_one(
    updater: Callable[..., Updater], text_row: Callable[..., Sample]
) -> None:
    made = updater(*ALGORITHMS["rloo"])
    before = weights(made)
    for step, reward in enumerate((float("inf"), 0.5)):
        groups = groups_of(text_row, made)
        groups[1][0].reward = reward
        update = SharedUpdate(made, step)
        for group in groups:
            update.add(group)
        (report,) = joined([update.finish()])
        assert report.facts["skipped_steps"] == (step == 0)
        changed = [name for name, value in weights(made).items() if not torch.equal(value, before[name])]
        assert bool(changed) == (step == 1)
