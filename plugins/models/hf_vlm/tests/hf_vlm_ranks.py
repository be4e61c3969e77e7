"""What one rank does in the test of several ranks; run as `hf_vlm_ranks.py FOLDER`."""

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
    OptimizerConfig,
    TrainBatch,
    TrainerContext,
    Want,
)
from rlinf_core.testing.ranks import keep_results, policy_and_value_loss

sys.path.insert(0, str(Path(__file__).parent))
import hf_vlm_support as support

WANT: frozenset[Want] = frozenset({"logprobs", "entropy", "values"})
LORA = LoRAConfig(rank=2, alpha=8.0)
CASES = {  # name -> preset, adapters, sharding, gradient checkpointing
    "tiny-smolvlm/whole/none": (LoRAConfig(), "none", False),
    "tiny-smolvlm/whole/full": (LoRAConfig(), "full", False),
    "tiny-smolvlm/lora/full": (LORA, "full", True),
    "tiny-qwen2_5_vl/whole/full": (LoRAConfig(), "full", True),
    "tiny-qwen2_5_vl/lora/none": (LORA, "none", False),
    "tiny-qwen3_vl/whole/full": (LoRAConfig(), "full", False),
    "tiny-paligemma/whole/full": (LoRAConfig(), "full", False),
}
ALONE = tuple(dict.fromkeys(f"{case.rpartition('/')[0]}/none" for case in CASES))
SHARES = {1: [[[0, 1, 3], [2, 4]]], 2: [[[0, 3], [1]], [[2, 4], []]]}  # ranks -> of each rank, micro-batches


def valued(preset: str) -> support.HFVLM:
    """The model of a case."""
    model = support.model(preset)
    model.add_value_head()
    return model


def batch(model: support.HFVLM, chosen: list[int]) -> TrainBatch:
    """Of some rows; no rows give one whose mask is all False."""
    rows = [support.rows(model)[i] for i in chosen or [0]]
    mask_BT = torch.arange(5) < torch.tensor([len(row.mask) for row in rows])[:, None]
    return TrainBatch(
        inputs=model.collate(rows, 5),
        mask_BT=mask_BT & bool(chosen),
        advantages_BT=torch.tensor([[1.0, -0.5, 2.0, -1.0, 0.5][i] for i in chosen or [0]])[:, None]
        * mask_BT,
        rollout_logprobs_BT=torch.zeros(mask_BT.shape),
    )


def scenario(case: str, folder: Path) -> dict[str, Any]:  # Any: numbers and weights
    """Three steps and an export."""
    lora, sharding, checkpointing = CASES.get(case) or (
        LORA if "lora" in case else LoRAConfig(),
        "none",
        False,
    )
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = valued(case.partition("/")[0])
    settings = FSDPConfig(sharding=sharding, gradient_checkpointing=checkpointing)  # type: ignore[arg-type]
    # with a smaller eps, Adam blows the rounding of gradients near zero up to whole steps
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1)
    context = TrainerContext(rank=rank, world_size=size, seed=3, total_steps=10)
    trainer: FSDPTrainer = FSDPBackend(settings).build(model, optimizer, lora, context)
    norms = []
    for _ in range(3):
        for chosen in SHARES[size][rank]:
            trainer.accumulate(batch(model, chosen), policy_and_value_loss, WANT)
        norms.append(trainer.step(15.0).grad_norm)
    outputs = trainer.outputs(batch(model, [0, 1, 2, 3, 4]).inputs, WANT)
    trainer.export(folder / "export")
    weights = {n: t.detach().clone() for bucket in trainer.weights() for n, t in bucket.tensors.items()}
    return {"norms": norms, "weights": weights, "outputs": vars(outputs), "sharded": trainer.sharded}


def main(folder: Path) -> None:
    """Every scenario."""
    keep_results(CASES, lambda case: scenario(case, folder / case), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
