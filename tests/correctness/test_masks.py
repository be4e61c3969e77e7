"""What is not the policy's own decision moves nothing: tokens of tools, and masked rows (5, 6, 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_algo_dapo.algorithm import DAPO
from rlinf_algo_dapo.config import DAPOConfig
from torch import Tensor

from rlinf_core.api import PolicyOutputs, TrainBatch
from rlinf_core.config.schema import RunConfig
from rlinf_core.flows.flow import record, row_metrics
from rlinf_core.roles.report import TrainReport
from rlinf_core.roles.scoring import scored_batch
from rlinf_core.roles.setup import build_algorithm
from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.run.evaluate import eval_metrics
from rlinf_core.types import Sample

GROUPS = ("algo.group_size=2",)
TERMS = ("algo.kl_coef=0.1", "algo.entropy_coef=0.01")
ALGORITHMS = {
    "grpo": ("algo=grpo", *GROUPS, *TERMS),
    "dr_grpo": ("algo=dr_grpo", *GROUPS, *TERMS),
    "gspo": ("algo=gspo", *GROUPS, *TERMS),
    "rloo": ("algo=rloo", *GROUPS, *TERMS),
    "cispo": ("algo=cispo", *GROUPS, *TERMS),
    "dapo": ("algo=dapo", *GROUPS, *TERMS, "algo.overlong_buffer=3"),
    "ppo": ("algo=ppo", *GROUPS, *TERMS, "algo.kl_in=both", "algo.gamma=0.9", "algo.gae_lambda=0.8"),
    "reinforce_pp": ("algo=reinforce_pp", *GROUPS, *TERMS, "algo.kl_in=both", "algo.gamma=0.9"),
}
OUTPUTS = ("logprobs_BT", "entropy_BT", "values_BT")


def with_tool_tokens(text_row: Callable[..., Sample]) -> list[Sample]:
    """Two rows in which a tool wrote some tokens, and said what would matter if it were read."""
    masks = ([1, 1, 0, 0, 1, 1], [1, 0, 1, 1])
    rows = []
    for i, mask in enumerate(masks):
        random = np.random.default_rng(i)
        tool = np.array(mask) == 0
        columns = {
            name: np.where(tool, 50.0, random.normal(-2.0, 0.3, len(mask))).astype(np.float32)
            for name in ("logprobs", "reference_logprobs", "values")
        }
        ids = random.integers(3, 21, len(mask)).tolist()
        rows.append(text_row([1, 5, 6], ids, mask, reward=float(i), **columns))
    return rows


def without_tool_tokens(rows: Sequence[Sample]) -> list[Sample]:
    """The same rows, as if the tool had written nothing."""
    columns = ("logprobs", "reference_logprobs", "values", "response_ids", "mask")
    return [replace(row, **{name: getattr(row, name)[row.mask] for name in columns}) for row in rows]


# 5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_tokens_of_a_tool_get_exactly_zero_gradient_whatever_the_terms_of_the_loss(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], name: str
) -> None:
    made = updater(*ALGORITHMS[name], "train.old_logprobs=rollout", "train.skip_gradient_free=false")
    rows = with_tool_tokens(text_row)
    _, _, columns = made.judge(rows, several=True)
    objective = made.objective(0)
    assert objective is not None
    loss, want = objective
    seen: dict[str, Tensor] = {}

    def watched(outputs: PolicyOutputs, batch: TrainBatch) -> Any:
        for part in OUTPUTS:
            tensor = getattr(outputs, part)
            if tensor is not None and tensor.requires_grad:
                tensor.register_hook(lambda gradient, part=part: seen.update({part: gradient.clone()}))
        seen["mask_BT"] = batch.mask_BT
        return loss(outputs, batch)

    made.accumulate(rows, range(2), columns, watched, want, TrainReport())
    mask_BT = seen.pop("mask_BT")
    assert mask_BT.sum() == 7
    assert {"logprobs_BT", "entropy_BT"} <= seen.keys()
    assert ("values_BT" in seen) == (name == "ppo")
    for part, gradient_BT in seen.items():
        assert not gradient_BT[~mask_BT].any(), part
        assert gradient_BT[mask_BT].all(), part


@pytest.mark.parametrize("name", ALGORITHMS)
def test_tokens_of_a_tool_take_no_step_in_returns_and_advantages(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], name: str
) -> None:
    made, again = (updater(*ALGORITHMS[name], "train.old_logprobs=rollout") for _ in range(2))
    rows = with_tool_tokens(text_row)
    _, advantages, columns = made.judge(rows, several=False)
    _, expected, plain = again.judge(without_tool_tokens(rows), several=False)
    assert columns.mask_BT.sum() == plain.mask_BT.sum() == 7
    torch.testing.assert_close(columns.advantages_BT[columns.mask_BT], plain.advantages_BT[plain.mask_BT])
    assert not columns.advantages_BT[~columns.mask_BT].any()
    assert advantages.metrics == expected.metrics
    if columns.returns_BT is not None:
        assert plain.returns_BT is not None
        torch.testing.assert_close(columns.returns_BT[columns.mask_BT], plain.returns_BT[plain.mask_BT])


# 6


def test_a_length_is_the_sum_of_the_mask_wherever_it_is_used(
    text_row: Callable[..., Sample], settings: Callable[..., RunConfig]
) -> None:
    """Seven and four tokens, of which the policy wrote three and four."""
    rows = [
        text_row([1, 5], [7] * 7, [1, 0, 0, 0, 0, 1, 1], reward=1.0),
        text_row([1, 5], [7] * 4, reward=0.0),
    ]
    assert [row.length for row in rows] == [3, 4]
    assert [record(row)["length"] for row in rows] == [3, 4]
    assert row_metrics(rows)["train/response_length"] == 3.5
    assert row_metrics(rows)["train/response_length_max"] == 4.0
    assert eval_metrics(rows, "exact")["eval/response_length"] == 3.5
    batch = scored_batch(rows)
    batch.max_length = 7
    # buffer 4 of 7: free up to 3, so that the first is not punished and the second loses 1 / 4
    assert DAPO(DAPOConfig(overlong_buffer=4)).advantages(batch).metrics["overlong_penalty"] == (0.25, 2.0)
    for mode, denominator in (("token-mean", 7.0), ("seq-mean-token-mean", 2.0)):
        algorithm = build_algorithm(settings("algo=grpo", f"algo.loss_aggregation={mode}"))
        assert algorithm.denominator(batch.mask_BT) == denominator
    advantages_BT = torch.tensor([[1.0], [10.0]]) * batch.mask_BT
    made = TrainBatch({}, batch.mask_BT, advantages_BT, torch.zeros(2, 7))
    logprobs_BT = torch.zeros(2, 7, requires_grad=True)
    algorithm = build_algorithm(settings("algo=grpo", "algo.loss_aggregation=seq-mean-token-mean"))
    algorithm.loss(PolicyOutputs(logprobs_BT), made).total.backward()
    expected_BT = torch.tensor([[-1 / 3], [-10 / 4]]) * batch.mask_BT
    torch.testing.assert_close(logprobs_BT.grad, expected_BT)


def test_the_ratio_of_a_response_is_a_mean_over_its_own_tokens(
    text_row: Callable[..., Sample], settings: Callable[..., RunConfig]
) -> None:
    """Log-ratios .3, .0, .3 of the policy's own tokens and 9 of a tool's: their mean is .2."""
    algorithm = build_algorithm(settings("algo=gspo", "algo.clip_ratio_high=0.9"))
    row = text_row([1, 5], [7] * 5, [1, 0, 0, 1, 1], reward=1.0)
    mask_BT = torch.from_numpy(row.mask)[None]
    new_BT = torch.tensor([[0.3, 9.0, 9.0, 0.0, 0.3]])
    batch = TrainBatch({}, mask_BT, 1.0 * mask_BT, torch.zeros(1, 5), old_logprobs_BT=torch.zeros(1, 5))
    terms = algorithm.loss(PolicyOutputs(new_BT), batch)
    total, count = terms.metrics["ratio"]
    assert count == 3
    assert float(total) / 3 == pytest.approx(np.exp(0.2), rel=1e-6)


# 10


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_rows_without_a_trained_token_change_nothing(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], name: str, mode: str
) -> None:
    """Other groups' rows that are masked as a whole stand beside the rows that are trained."""
    words = (*ALGORITHMS[name], f"algo.loss_aggregation={mode}", "train.old_logprobs=rollout")
    words += ("optimizer.lr=0.1", "optimizer.eps=1")  # steps follow the size of gradients, not their rounding
    with_empty, plain = (updater(*words, "train.skip_gradient_free=false") for _ in range(2))
    empty = [replace(row, group=1, mask=np.zeros_like(row.mask)) for row in with_tool_tokens(text_row)]
    found, expected = StepUpdate(with_empty, 0), StepUpdate(plain, 0)
    found.add([*with_tool_tokens(text_row), *empty])
    expected.add(with_tool_tokens(text_row))
    ours, theirs = found.finish(), expected.finish()
    assert ours.sums["grad_norm"] == pytest.approx(theirs.sums["grad_norm"], rel=1e-5)
    for metric in ("ratio", "policy_loss", "entropy", "kl"):
        # a loss may be a sum of terms of size one that nearly cancel
        assert ours.sums[metric] == pytest.approx(theirs.sums[metric], rel=1e-5, abs=1e-6)
    named = zip(with_empty.trainer.policy.named(), plain.trainer.policy.named(), strict=True)  # type: ignore[attr-defined]
    for (part, one), (_, other) in named:
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=part)
