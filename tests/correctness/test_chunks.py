"""Actions of a chunk that were not executed move nothing (12)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.model import MLPPolicy

from rlinf_core.api import LoRAConfig, OptimizerConfig, Space, TrainerContext
from rlinf_core.config.schema import RunConfig
from rlinf_core.roles.estimates import LOGPROBS
from rlinf_core.roles.scoring import scored_batch
from rlinf_core.roles.setup import build_algorithm
from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.types import Trajectory

GRPO = ("algo=grpo", "algo.group_size=2", "algo.kl_coef=0.1", "algo.entropy_coef=0.01")


def acting_updater(config: RunConfig, level: str) -> tuple[Updater, MLPPolicy]:
    """Training of a policy whose decisions are chunks of three actions of two dimensions."""
    model = MLPPolicy(MLPPolicyConfig(hidden=(8,), chunk=3))
    model.bind({"state": Space(shape=(4,))}, Space(shape=(2,)))
    model.set_logprob_level(level)  # type: ignore[arg-type]
    trainer = FSDPBackend(FSDPConfig()).build(
        model, OptimizerConfig(lr=1e-3), LoRAConfig(), TrainerContext(seed=3), keep_reference=True
    )
    with torch.no_grad():
        for _, parameter in trainer.policy.named():  # type: ignore[attr-defined]
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return Updater(trainer, build_algorithm(config), model, config, 0, 1), model


def cut_chunks(positions: int, unexecuted: float) -> list[Trajectory]:
    """Two episodes of two decisions; success in the last one's first action leaves two actions undone."""
    rows = []
    for i in range(2):
        random = np.random.default_rng(i)
        actions = random.normal(size=(2, 3, 2)).astype(np.float32)
        executed = np.array([[True, True, True], [True, i == 1, False]])
        actions[~executed] = unexecuted
        mask = executed.any(1) if positions == 1 else executed.repeat(positions // 3, 1).flatten()
        rows.append(
            Trajectory(
                group=0,
                replica=i,
                seed=i,
                mask=mask,
                logprobs=np.where(mask, -2.0, 0.0).astype(np.float32),
                weight_version=0,
                reward=float(i),
                observations={"state": random.normal(size=(2, 4)).astype(np.float32)},
                actions=actions,
                executed=executed,
            )
        )
    return rows


@pytest.mark.parametrize(("level", "positions"), [("chunk", 1), ("action", 3), ("token", 6)])
def test_actions_that_were_not_executed_enter_no_loss_no_kl_no_entropy_and_no_metric(
    settings: Callable[..., RunConfig], level: str, positions: int
) -> None:
    config = settings(*GRPO, f"algo.logprob_level={level}", "train.old_logprobs=recompute")
    results = []
    for unexecuted in (0.0, 40.0):
        made, _ = acting_updater(config, level)
        rows = cut_chunks(positions, unexecuted)
        referred_BT = made.estimate(rows, LOGPROBS, reference=True).logprobs_BT.numpy()
        for row, logprobs_T in zip(rows, referred_BT, strict=True):
            row.reference_logprobs = logprobs_T[: len(row.mask)]
        update = StepUpdate(made, 0)
        update.add(rows)
        report = update.finish()
        named = {name: p.detach().clone() for name, p in made.trainer.policy.named()}  # type: ignore[attr-defined]
        results.append((report.sums, report.facts, report.peaks, named))
    (sums, facts, peaks, weights), (sums_too, facts_too, peaks_too, weights_too) = results
    assert (sums, facts, peaks) == (sums_too, facts_too, peaks_too)
    assert all(torch.equal(weights[name], weights_too[name]) for name in weights)
    decisions = {"chunk": 4, "action": 3 + 1 + 3 + 2, "token": 2 * 9}[level]
    assert sums["entropy"][1] == sums["kl"][1] == sums["ratio"][1] == decisions
    assert sums["grad_norm"][0] > 0


@pytest.mark.parametrize(("level", "positions"), [("chunk", 1), ("action", 3), ("token", 6)])
def test_the_entropy_is_that_of_the_executed_dimensions(
    settings: Callable[..., RunConfig], level: str, positions: int
) -> None:
    made, model = acting_updater(settings(*GRPO, f"algo.logprob_level={level}"), level)
    rows = cut_chunks(positions, 7.0)
    outputs = made.trainer.outputs(model.collate(rows), frozenset({"logprobs", "entropy"}))
    log_std_CA = made.trainer.policy.inner.log_std.detach().view(3, 2)  # type: ignore[attr-defined]
    each_C = (log_std_CA + 0.5 * np.log(2 * np.pi * np.e)).sum(-1)
    expected = [float(2 * each_C[0] + each_C[1] + each_C[2]), float(2 * each_C[:2].sum() + each_C[2])]
    assert outputs.entropy_BT is not None
    mask_BT = scored_batch(rows).mask_BT
    found = (outputs.entropy_BT * mask_BT).sum(-1).tolist()
    assert found == pytest.approx(expected, rel=1e-5)
