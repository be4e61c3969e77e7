"""What one rank does in the test of several ranks; run as `openvla_ranks.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_backend_fsdp.trainer import FSDPTrainer

from rlinf_core.api import (
    LoRAConfig,
    Model,
    OptimizerConfig,
    TrainBatch,
    TrainerContext,
    Want,
)
from rlinf_core.testing.ranks import keep_results, policy_and_value_loss
from rlinf_core.types import Trajectory

sys.path.insert(0, str(Path(__file__).parent))
import openvla_support as support

WANT: frozenset[Want] = frozenset({"logprobs", "entropy", "values"})
CASES = {  # name -> adapters, sharding, gradient checkpointing
    "whole-none": (LoRAConfig(), "none", False),
    "whole-full": (LoRAConfig(), "full", True),
    "lora-none": (LoRAConfig(rank=2, alpha=8.0), "none", False),
    "lora-full": (LoRAConfig(rank=2, alpha=8.0), "full", False),
}
SHARES = {1: [[[0, 1], [2]]], 2: [[[0], [1]], [[2], []]]}  # ranks -> of each rank, its micro-batches


def rows() -> list[Trajectory]:
    """Three episodes of 4, 2 and 1 decisions of three actions of two tokens."""
    model = support.tiny("token", chunk=3)
    sample = model.act(model.module(1), support.shown(), support.SEEDS)
    found = []
    for length in (4, 2, 1):
        cut = {name: value[:length] for name, value in vars(sample).items() if value is not None}
        found.append(support.trajectory(support.shown(length), type(sample)(**cut), 6))
    return found


def batch(model: Model, made: list[Trajectory], chosen: list[int]) -> TrainBatch:
    """Of some of the rows `made`; no rows give one whose mask is all False."""
    taken = [made[i] for i in chosen or [0]]
    mask_BT = torch.arange(24) < torch.tensor([len(row.mask) for row in taken])[:, None]
    return TrainBatch(
        inputs=model.collate(taken, 24),
        mask_BT=mask_BT & bool(chosen),
        advantages_BT=torch.tensor([[1.0, -0.5, 2.0][i] for i in chosen or [0]])[:, None] * mask_BT,
        rollout_logprobs_BT=torch.zeros(mask_BT.shape),
    )


def scenario(case: str, folder: Path) -> dict[str, Any]:  # Any: numbers and weights
    """Three steps and an export."""
    return trained(support.tiny("token", chunk=3, valued=True), rows(), *CASES[case], folder)


def trained(
    model: Model, made: list[Trajectory], lora: LoRAConfig, sharding: Any, checkpointing: bool, folder: Path
) -> dict[str, Any]:
    """Three steps on the rows `made` and an export. Any: numbers and weights."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    settings = FSDPConfig(sharding=sharding, gradient_checkpointing=checkpointing)
    # with a smaller eps, Adam blows the rounding of gradients near zero up to whole steps
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1)
    context = TrainerContext(rank=rank, world_size=size, seed=3, total_steps=10)
    trainer: FSDPTrainer = FSDPBackend(settings).build(model, optimizer, lora, context)
    norms = []
    for _ in range(3):
        for chosen in SHARES[size][rank]:
            trainer.accumulate(batch(model, made, chosen), policy_and_value_loss, WANT)
        norms.append(trainer.step(42.0).grad_norm)
    outputs = trainer.outputs(batch(model, made, [0, 1, 2]).inputs, WANT)
    trainer.export(folder / "export")
    weights = {n: t.detach().clone() for bucket in trainer.weights() for n, t in bucket.tensors.items()}
    return {"norms": norms, "weights": weights, "outputs": vars(outputs), "sharded": trainer.sharded}


def main(folder: Path) -> None:
    """Every scenario."""
    keep_results(CASES, lambda case: scenario(case, folder / case), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
