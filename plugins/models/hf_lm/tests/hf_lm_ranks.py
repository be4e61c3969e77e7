"""What one rank does in the test of several ranks; run as `hf_lm_ranks.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_model_hf_lm import attention
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM
from torch import Tensor

from rlinf_core.api import LoRAConfig, OptimizerConfig, TrainBatch, TrainerContext, Want
from rlinf_core.roles.batching import rank_micro_batches, row_tokens, shared_prompts
from rlinf_core.testing.ranks import keep_results, policy_and_value_loss
from rlinf_core.types import Prompt, Sample

WANT: frozenset[Want] = frozenset({"logprobs", "entropy", "values"})
LORA = LoRAConfig(rank=2, alpha=8.0)
CASES = {  # name -> packing, adapters, settings of the backend
    "whole/padded": ("never", LoRAConfig(), FSDPConfig(sharding="none")),
    "lora/padded": ("never", LORA, FSDPConfig(sharding="none")),
    "whole/replicated": ("always", LoRAConfig(), FSDPConfig(sharding="none")),
    "whole/sharded": ("always", LoRAConfig(), FSDPConfig(sharding="full", gradient_checkpointing=True)),
    "lora/sharded": ("always", LORA, FSDPConfig(sharding="full")),
}
LENGTHS = (40, 5, 17, 1, 9, 30, 3)
BUDGET = 60  # real tokens of a micro-batch


def rows() -> list[Sample]:
    """Two prompts in turn, responses of unlike lengths."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(3, 100, n) for n in (12, 4)]
    return [
        Sample(
            group=i % 2,
            replica=i // 2,
            seed=i,
            mask=np.ones(length, np.bool_),
            logprobs=np.zeros(length, np.float32),
            weight_version=0,
            reward=float(rng.normal()),
            prompt=Prompt(i % 2, prompts[i % 2], ""),
            response_ids=rng.integers(3, 100, length),
        )
        for i, length in enumerate(LENGTHS)
    ]


def batch(model: HFLM, chosen: list[int]) -> TrainBatch:
    """Of some rows; no rows give one whose mask is all False."""
    picked = [rows()[i] for i in chosen or [0]]
    width = max(row.length for row in picked)
    mask_BT = torch.arange(width) < torch.tensor([row.length for row in picked])[:, None]
    advantages_B1 = torch.tensor([[row.reward] for row in picked])
    return TrainBatch(
        inputs=model.collate(picked, width),
        mask_BT=mask_BT & bool(chosen),
        advantages_BT=advantages_B1 * mask_BT,
        rollout_logprobs_BT=torch.zeros(mask_BT.shape),
    )


def scenario(case: str) -> dict[str, Any]:  # Any: numbers and weights
    """Three steps on this rank's share."""
    packing, lora, settings = CASES[case]
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = HFLM(HFLMConfig(preset="tiny-qwen3", packing=packing))  # type: ignore[arg-type]
    model.add_value_head()
    # with a smaller eps, Adam blows the rounding of gradients near zero up to whole steps
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-3)
    context = TrainerContext(rank=rank, world_size=size, seed=3, total_steps=10)
    trainer = FSDPBackend(settings).build(model, optimizer, lora, context)
    tokens, everyone = [row_tokens(row) for row in rows()], range(len(LENGTHS))
    groups = prompts = None
    if trainer.padding_free:
        groups, prompts = shared_prompts(dict(enumerate(rows())))
    shares = rank_micro_batches(everyone, tokens, size, BUDGET, groups=groups, prompts=prompts)[rank]
    seen: list[int] = []
    real = attention.attend

    def counted(queries: Tensor, *rest: Any) -> Tensor:
        seen.append(len(queries))
        return real(queries, *rest)

    attention.attend = counted
    norms = []
    for _ in range(3):
        for chosen in shares:
            trainer.accumulate(batch(model, chosen), policy_and_value_loss, WANT)
        norms.append(trainer.step(float(sum(LENGTHS))).grad_norm)
    attention.attend = real
    outputs = trainer.outputs(batch(model, list(everyone)).inputs, WANT)
    weights = {n: t.detach().clone() for bucket in trainer.weights() for n, t in bucket.tensors.items()}
    return {
        "norms": norms,
        "weights": weights,
        "outputs": vars(outputs),
        "sharded": trainer.sharded,
        "packed_calls": len(seen),
    }


def main(folder: Path) -> None:
    """Every scenario."""
    keep_results(CASES, scenario, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
