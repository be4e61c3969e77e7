"""How rows are cut into micro-batches and padded changes nothing, for every algorithm (1 and 4).

Axes: B rows, T decision steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlinf_core.api import Algorithm
from rlinf_core.config.schema import RunConfig
from rlinf_core.roles.report import TrainReport
from rlinf_core.roles.setup import build_algorithm
from rlinf_core.roles.update import Updater
from rlinf_core.testing.check_algorithms import scored_batch, train_batch
from rlinf_core.types import Sample

GROUPS = ("algo.group_size=4",)
TERMS = ("algo.kl_coef=0.1", "algo.entropy_coef=0.01")
ALGORITHMS = {
    "grpo": ("algo=grpo", *GROUPS, *TERMS, "algo.dual_clip=3"),
    "dr_grpo": ("algo=dr_grpo", *GROUPS, "algo.max_tokens_norm=8"),
    "gspo": ("algo=gspo", *GROUPS, *TERMS),
    "rloo": ("algo=rloo", *GROUPS),
    "cispo": ("algo=cispo", *GROUPS, "algo.importance_cap=2"),
    "dapo": ("algo=dapo", *GROUPS, *TERMS),
    "ppo": ("algo=ppo", *TERMS, "algo.kl_in=both", "algo.value_clip=0.2", "algo.gamma=0.9"),
    "reinforce_pp": ("algo=reinforce_pp", *TERMS, "algo.kl_in=both", "algo.gamma=0.9"),
    "reinforce_pp with groups": ("algo=reinforce_pp", *GROUPS, *TERMS, "algo.baseline=group"),
}


# 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_uneven_and_empty_micro_batches_give_the_gradient_of_the_whole(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], name: str
) -> None:
    whole = gradients(updater, text_row, name, [range(8)])
    for split in (
        [[0], [1, 2], [3, 4, 5, 6, 7]],
        [[], [0, 1, 2, 3, 4, 5, 6, 7], []],
        [[i] for i in range(8)],
    ):
        parts = gradients(updater, text_row, name, split)
        assert parts.keys() == whole.keys()
        for part, gradient in whole.items():
            assert float((parts[part] - gradient).norm() / gradient.norm()) < 1e-6, (part, split)


def gradients(
    updater: Callable[..., Updater],
    text_row: Callable[..., Sample],
    name: str,
    split: Sequence[Sequence[int]],
) -> dict[str, Tensor]:
    """Of all parameters, from rows of different lengths that the policy did not draw itself."""
    made = updater(*ALGORITHMS[name], "train.old_logprobs=rollout")
    rows = list(eight_rows(text_row))
    _, _, columns = made.judge(rows, several=True)
    objective = made.objective(0)
    assert objective is not None
    for part in split:
        made.shares = lambda rows, positions, part=part: [list(part)]  # type: ignore[method-assign,misc]
        made.accumulate(rows, part, columns, *objective, TrainReport())
    named = made.trainer.policy.named()  # type: ignore[attr-defined]
    return {part: p.grad.clone() for part, p in named if p.grad is not None and p.grad.any()}


def eight_rows(text_row: Callable[..., Sample]) -> Iterator[Sample]:
    random = np.random.default_rng(0)
    for i, n in enumerate((5, 3, 4, 2, 5, 8, 1, 3)):
        columns = {
            name: random.normal(-3.0, 0.3, n).astype(np.float32)
            for name in ("logprobs", "reference_logprobs", "values")
        }
        prompt = random.integers(3, 21, 2 + 9 * (i % 2)).tolist()
        ids = random.integers(3, 21, n).tolist()
        yield text_row(prompt, ids, reward=float(random.random()), group=i // 4, replica=i % 4, **columns)


# 4


@pytest.mark.parametrize("junk", [7.0, -1e30, math.nan], ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_amount_side_and_content_of_padding_change_no_advantage_no_loss_and_no_metric(
    settings: Callable[..., RunConfig], name: str, junk: float
) -> None:
    config = settings(*ALGORITHMS[name])

    def fresh() -> Algorithm:
        return build_algorithm(config)

    scored = scored_batch(fresh().needs)
    batch, outputs = train_batch(fresh())
    mask_BT = scored.mask_BT
    expected, loss = fresh().advantages(scored), fresh().loss(outputs, batch)
    loss.total.backward()
    for left, width in ((False, 9), (True, 5), (True, 12)):
        there = places(mask_BT, left, width)
        moved = fresh().advantages(relocated(scored, mask_BT, there, junk))
        torch.testing.assert_close(back(moved.advantages_BT, mask_BT, there), expected.advantages_BT)
        assert moved.metrics.keys() == expected.metrics.keys()
        for metric, value in expected.metrics.items():
            assert moved.metrics[metric] == pytest.approx(value, rel=1e-5)
        shifted = relocated(outputs, mask_BT, there, junk)
        for item in fields(shifted):
            if getattr(shifted, item.name) is not None:
                setattr(shifted, item.name, getattr(shifted, item.name).detach().requires_grad_())
        again = fresh().loss(shifted, relocated(batch, mask_BT, there, junk))
        again.total.backward()
        torch.testing.assert_close(again.total, loss.total)
        for item in fields(shifted):
            one, other = getattr(shifted, item.name), getattr(outputs, item.name)
            if other is not None and other.grad is not None:
                torch.testing.assert_close(back(one.grad, mask_BT, there), other.grad)
        for metric, (total, count) in loss.metrics.items():
            pair = tuple(map(float, again.metrics[metric]))
            assert pair == pytest.approx((float(total), float(count)), rel=1e-5, abs=1e-6), metric


def places(mask_BT: Tensor, left: bool, width: int) -> Tensor:
    """Where the tokens of each row stand among `width`: at the right end, or at the left one."""
    there = torch.zeros(len(mask_BT), width, dtype=torch.bool)
    for row, length in zip(there, mask_BT.sum(-1).tolist(), strict=True):
        row[width - length :] = left
        row[:length] |= not left
    return there


def relocated(record: Any, mask_BT: Tensor, there: Tensor, junk: float) -> Any:
    """The record with the tokens of its columns elsewhere, and junk around them."""
    changed = {}
    for item in fields(record):
        column = getattr(record, item.name)
        if item.name.endswith("_BT") and column is not None:
            given = item.name in ("mask_BT", "advantages_BT")  # whose padding the interface promises
            fill = 0 if given else junk
            changed[item.name] = torch.full(there.shape, fill, dtype=column.dtype)
            changed[item.name][there] = column.detach()[mask_BT]
    return replace(record, **changed)


def back(values_BT: Tensor, mask_BT: Tensor, there: Tensor) -> Tensor:
    """The values where they were; those around them have to be 0."""
    assert not values_BT[~there].any()
    found = torch.zeros(mask_BT.shape)
    found[mask_BT] = values_BT[there]
    return found
