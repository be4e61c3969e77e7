"""One batch of uneven rows, and the loss that rlinf's trainer and algorithm compute on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_core.api import LoRAConfig, OptimizerConfig, TrainBatch, TrainerContext
from rlinf_core.plugins import plugins
from rlinf_core.roles.scoring import pad_rows
from rlinf_core.types import Prompt, Sample

PROMPT = 3


def fixed_batch(model: Path, rows: int) -> dict[str, Any]:
    """Token ids, masks, advantages and old log-probabilities, padded as the peer wants them."""
    del model
    random = np.random.default_rng(5)
    lengths = [int(n) for n in random.integers(4, 40, size=rows)]
    width = max(lengths)
    completion = np.zeros((rows, width), dtype=int)
    mask = np.zeros((rows, width), dtype=int)
    for row, length in enumerate(lengths):
        completion[row, :length] = random.integers(6, 60, size=length)
        mask[row, :length] = 1
    old = -4.0 + random.normal(0, 0.3, size=(rows, width))
    return {
        "prompt_ids": random.integers(6, 60, size=(rows, PROMPT)).tolist(),
        "prompt_mask": np.ones((rows, PROMPT), dtype=int).tolist(),
        "completion_ids": completion.tolist(),
        "completion_mask": mask.tolist(),
        "advantages": random.normal(size=rows).tolist(),
        "old_per_token_logps": old.tolist(),
    }


def our_loss(model_path: Path, batch: dict[str, Any]) -> float:
    """Summed loss over its denominator, by the same objects that train."""
    manager = plugins()
    model_spec = manager.get("models", "hf_lm")
    model = model_spec.load()(model_spec.config(path=str(model_path)))
    backend_spec = manager.get("backends", "fsdp")
    trainer = backend_spec.load()(backend_spec.config()).build(
        model, OptimizerConfig(), LoRAConfig(), TrainerContext()
    )
    algo_spec = manager.get("algorithms", "grpo")
    algorithm = algo_spec.load()(algo_spec.config())
    rows = _samples(batch)
    mask_BT = pad_rows([row.mask for row in rows], bool)
    advantages_B = torch.tensor(batch["advantages"], dtype=torch.float32)
    old_BT = torch.tensor(batch["old_per_token_logps"], dtype=torch.float32)
    train_batch = TrainBatch(
        inputs=model.collate(rows),
        mask_BT=mask_BT,
        advantages_BT=advantages_B[:, None] * mask_BT,
        rollout_logprobs_BT=old_BT,
        old_logprobs_BT=old_BT,
    )
    totals: list[float] = []

    def loss(outputs: Any, given: Any) -> Any:
        terms = algorithm.loss(outputs, given)
        totals.append(float(terms.total.detach()))
        return terms

    trainer.accumulate(train_batch, loss)
    return sum(totals) / float(algorithm.denominator(mask_BT))


def _samples(batch: dict[str, Any]) -> list[Sample]:
    rows = []
    for index, prompt_ids in enumerate(batch["prompt_ids"]):
        length = sum(batch["completion_mask"][index])
        ids = np.asarray(batch["completion_ids"][index][:length], dtype=np.int64)
        rows.append(
            Sample(
                group=0,
                replica=index,
                seed=0,
                mask=np.ones(length, dtype=bool),
                logprobs=np.zeros(length, dtype=np.float32),
                weight_version=0,
                prompt=Prompt(index=0, token_ids=np.asarray(prompt_ids, dtype=np.int64), text=""),
                response_ids=ids,
            )
        )
    return rows
