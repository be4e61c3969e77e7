"""What one rank does in the test of resharding: two save, others load. Run as `fsdp_resharding.py FOLDER`.

Axes: B rows, T tokens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_backend_fsdp.export import whole
from rlinf_backend_fsdp.trainer import FSDPTrainer
from torch import Tensor, nn

from rlinf_core.api import (
    LoRAConfig,
    LossTerms,
    Model,
    OptimizerConfig,
    PolicyOutputs,
    TrainBatch,
    TrainerContext,
    Want,
)
from rlinf_core.testing.ranks import keep_results
from rlinf_core.types import Experience, Sampling

ROWS, TOKENS, VOCAB = 12, 5, 16
LOGPROBS: frozenset[Want] = frozenset({"logprobs"})


class Bigrams(Model):
    """Next tokens from the last one, by layers whose sizes no number of ranks divides."""

    def module(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Embedding(VOCAB, 10), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, VOCAB))

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        raise ValueError("these tests make their own inputs")

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        ids_BS = inputs["ids"]
        logprobs_BTV = module(ids_BS[:, :-1]).log_softmax(-1)
        return PolicyOutputs(logprobs_BTV.gather(-1, ids_BS[:, 1:, None]).squeeze(-1))

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        return [part for part in module.modules() if isinstance(part, nn.Linear)]

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        raise ValueError("these tests export nothing")


def build(sharding: str) -> FSDPTrainer:
    """A trainer of this rank."""
    context = TrainerContext(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        seed=3,
        total_steps=10,
    )
    backend = FSDPBackend(FSDPConfig(sharding=sharding))  # type: ignore[arg-type]
    return backend.build(Bigrams(None), OptimizerConfig(lr=1e-2, weight_decay=0.1), LoRAConfig(), context)


def train(trainer: FSDPTrainer, steps: Sequence[int]) -> None:
    """Steps on this rank's share of the rows."""
    world = trainer.world
    for step in steps:
        ids_BS = torch.randint(VOCAB, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(step))
        ids_BS = ids_BS[world.rank :: world.size]
        mask_BT = torch.ones(len(ids_BS), TOKENS, dtype=torch.bool)
        batch = TrainBatch({"ids": ids_BS}, mask_BT, mask_BT.float(), torch.zeros(mask_BT.shape))
        trainer.accumulate(batch, lambda outputs, _: LossTerms(-outputs.logprobs_BT.sum()), LOGPROBS)
        trainer.step(float(ROWS * TOKENS))


def state(trainer: FSDPTrainer) -> dict[str, Tensor]:
    """Parameters and moments, whole."""
    return {name: whole(tensor).clone() for name, tensor in trainer._state().items()}


def scenario(sharding: str, folder: Path) -> dict[str, Any]:  # Any: tensors by name
    """Two ranks save after three steps; any others load that. Both take two more."""
    trainer = build(sharding)
    path = folder.parent / "2" / f"checkpoint-{sharding}"
    if trainer.world.size == 2:
        train(trainer, range(3))
        trainer.save(path)
    else:
        trainer.load(path)
    found = state(trainer)
    train(trainer, range(3, 5))
    return {"loaded": found, "trained": state(trainer), "version": trainer.version}


def main(folder: Path) -> None:
    """Sharded and replicated."""
    keep_results(["full", "none"], lambda sharding: scenario(sharding, folder), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
