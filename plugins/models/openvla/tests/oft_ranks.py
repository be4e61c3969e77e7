"""What one rank does in the test of several ranks; run as `oft_ranks.py FOLDER`."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_backend_fsdp.trainer import FSDPTrainer

from rlinf_core.api import (
    LoRAConfig,
    LossTerms,
    OptimizerConfig,
    PolicyOutputs,
    TrainBatch,
    TrainerContext,
    Want,
)
from rlinf_core.testing.ranks import keep_results
from rlinf_core.types import Trajectory

sys.path.insert(0, str(Path(__file__).parent))
import oft_support as support

WANT: frozenset[Want] = frozenset({"logprobs", "entropy", "values"})
CASES = {  # name -> head, adapters, sharding, gradient checkpointing
    "tokens-whole-full": ("tokens", LoRAConfig(), "full", True),
    "tokens-lora-full": ("tokens", LoRAConfig(rank=2, alpha=8.0), "full", False),
    "continuous-whole-full": ("continuous", LoRAConfig(), "full", False),
}
SHARES = {1: [[[0, 1], [2]]], 2: [[[0], [1]], [[2], []]]}  # ranks -> of each rank, its micro-batches


def small(head: str) -> support.OpenVLAOFT:
    """The model of a case."""
    return support.small("token", head=head, noise=1.0, valued=True)


@cache
def rows(head: str) -> list[Trajectory]:
    """Three episodes of 4, 2 and 1 decisions of three actions of two tokens."""
    model = small(head)
    sample = model.act(model.module(1), support.shown(), support.SEEDS)
    lengths = (4, 2, 1)
    return [support.trajectory(support.shown(n), support.first(sample, n), 6) for n in lengths]


def batch(head: str, model: support.OpenVLAOFT, chosen: list[int]) -> TrainBatch:
    """Of some rows; no rows give one whose mask is all False."""
    taken = [rows(head)[i] for i in chosen or [0]]
    mask_BT = torch.arange(24) < torch.tensor([len(row.mask) for row in taken])[:, None]
    return TrainBatch(
        inputs=model.collate(taken, 24),
        mask_BT=mask_BT & bool(chosen),
        advantages_BT=torch.tensor([[1.0, -0.5, 2.0][i] for i in chosen or [0]])[:, None] * mask_BT,
        rollout_logprobs_BT=torch.zeros(mask_BT.shape),
    )


def loss(outputs: PolicyOutputs, part: TrainBatch) -> LossTerms:
    """Policy gradient with entropy, summed; values learn the advantages."""
    gained = outputs.logprobs_BT * part.advantages_BT
    assert outputs.entropy_BT is not None
    assert outputs.values_BT is not None
    missed = (outputs.values_BT - part.advantages_BT).square()
    return LossTerms((missed - gained - 0.01 * outputs.entropy_BT)[part.mask_BT].sum())


def scenario(case: str, folder: Path) -> dict[str, Any]:  # Any: numbers and weights
    """Three steps and an export."""
    head, lora, sharding, checkpointing = CASES[case]
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = small(head)
    settings = FSDPConfig(sharding=sharding, gradient_checkpointing=checkpointing)  # type: ignore[arg-type]
    # with a smaller eps, Adam blows the rounding of gradients near zero up to whole steps
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1)
    context = TrainerContext(rank=rank, world_size=size, seed=3, total_steps=10)
    trainer: FSDPTrainer = FSDPBackend(settings).build(model, optimizer, lora, context)
    norms = []
    for _ in range(3):
        for chosen in SHARES[size][rank]:
            trainer.accumulate(batch(head, model, chosen), loss, WANT)
        norms.append(trainer.step(42.0).grad_norm)
    outputs = trainer.outputs(batch(head, model, [0, 1, 2]).inputs, WANT)
    trainer.export(folder / "export")
    weights = {n: t.detach().clone() for bucket in trainer.weights() for n, t in bucket.tensors.items()}
    return {"norms": norms, "weights": weights, "outputs": vars(outputs), "sharded": trainer.sharded}


def main(folder: Path) -> None:
    """Every scenario."""
    keep_results(CASES, lambda case: scenario(case, folder / case), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
