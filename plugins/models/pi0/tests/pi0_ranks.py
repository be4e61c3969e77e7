"""Tiny flows, what they see, and what one rank does in the tests of several; run as `pi0_ranks.py FOLDER`.

Axes: B rows, D decisions, N environments, T positions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_backend_fsdp.trainer import FSDPTrainer
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.model import Pi0
from torch import Tensor

from rlinf_core.api import (
    ActionSample,
    LoRAConfig,
    LossTerms,
    OptimizerConfig,
    PolicyOutputs,
    Space,
    TrainBatch,
    TrainerContext,
    Want,
)
from rlinf_core.api.instructions import instruction_bytes
from rlinf_core.testing.ranks import keep_results
from rlinf_core.types import Trajectory

BOX = Space(shape=(3,), low=-0.5, high=1.5)
SPACES = {
    "state": Space(shape=(5,)),
    "images/left": Space(shape=(28, 56, 3), low=0.0, high=255.0),
    "images/wrist": Space(shape=(56, 56, 3), low=0.0, high=255.0),
}
TEXTS = ("push the red cube", "lift", "open the drawer", "lift")
WANT: frozenset[Want] = frozenset({"logprobs", "entropy", "values"})
ALL = LoRAConfig(rank=4, alpha=8.0)


def flow(action: Space = BOX, valued: bool = False, level: Any = "chunk", **options: Any) -> Pi0:
    """A tiny flow, bound. Any: values of options."""
    source = {} if "path" in options else {"preset": "tiny"}
    model = Pi0(Pi0Config(**{"chunk": 4, **source, **options}))
    model.bind(SPACES, action)
    model.set_logprob_level(level)
    if valued:
        model.add_value_head()
    return model


def wake(module: Any, seed: int = 5) -> Any:
    """Heads and projections far from zero, so that outputs differ between states. Any: a pi0 network."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            scale = 0.3 if "head." in name or "embed_action_time" in name or "out_proj" in name else 0.05
            parameter.add_(scale * torch.randn(parameter.shape, generator=random))
    return module


def shown(count: int = 4) -> dict[str, Tensor]:
    """What environments show."""
    random = torch.Generator().manual_seed(1)
    pictures = {
        name: torch.randint(256, (count, *space.shape), generator=random, dtype=torch.uint8)
        for name, space in SPACES.items()
        if name.startswith("images/")
    }
    texts = [TEXTS[i % len(TEXTS)] for i in range(count)]
    return {
        "state": torch.randn(count, 5, generator=random),
        **pictures,
        "instruction": torch.from_numpy(instruction_bytes(texts)),
    }


def episode(sample: ActionSample, seen: dict[str, Tensor], rows: slice, each: int = 1) -> Trajectory:
    """An episode of some of the decisions, with `each` positions a decision."""
    actions = sample.actions[rows].numpy()
    executed = np.ones(actions.shape[:2], dtype=bool)
    executed[-1, 2:] = False
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(len(actions) * each, dtype=bool),
        logprobs=np.zeros(len(actions) * each, dtype=np.float32),
        weight_version=0,
        observations={name: tensor[rows].numpy() for name, tensor in seen.items()},
        actions=actions,
        executed=executed,
        latents=None if sample.latents is None else sample.latents[rows].numpy(),
    )


def rows_of(model: Pi0, module: Any, each: int = 1) -> list[Trajectory]:
    """Episodes of three, one and two decisions that the model drew. Any: a module."""
    seen = shown(6)
    sample = model.act(module, seen, [3, 1, 4, 1, 5, 9])
    return [episode(sample, seen, slice(*ends), each) for ends in ((0, 3), (3, 4), (4, 6))]


def trainer(model: Pi0, lora: LoRAConfig = LoRAConfig(), **settings: Any) -> FSDPTrainer:  # noqa: B008
    """A trainer of this process. Any: values of settings."""
    context = TrainerContext(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        seed=3,
        total_steps=10,
    )
    optimizer = OptimizerConfig(lr=1e-3, eps=1e-4, grad_clip=1.0)
    return FSDPBackend(FSDPConfig(**settings)).build(model, optimizer, lora, context)


def loss(outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
    """Policy gradient, and values that learn the advantages."""
    total = -(outputs.logprobs_BT * batch.advantages_BT)[batch.mask_BT].sum()
    if outputs.values_BT is not None:
        total = total + (outputs.values_BT - batch.advantages_BT)[batch.mask_BT].square().sum()
    return LossTerms(total, {})


def train(made: FSDPTrainer, rows: list[Trajectory], shares: list[list[int]], steps: int = 2) -> list[float]:
    """Steps on these micro-batches of the rows; returns gradient norms."""
    norms = []
    for _ in range(steps):
        for share in shares:
            chosen = share or [0]
            width = max(len(rows[i].mask) for i in chosen)
            mask_BT = torch.arange(width) < torch.tensor([len(rows[i].mask) for i in chosen])[:, None]
            batch = TrainBatch(
                inputs=made.model.collate([rows[i] for i in chosen], width),
                mask_BT=mask_BT & bool(share),
                advantages_BT=mask_BT * torch.tensor([[1.0, -0.5, 0.7][i] for i in chosen])[:, None],
                rollout_logprobs_BT=torch.zeros(len(chosen), width),
            )
            made.accumulate(batch, loss, frozenset({"logprobs", "values"}))
        norms.append(made.step(6.0).grad_norm)
    return norms


CASES: dict[str, tuple[dict[str, Any], LoRAConfig]] = {  # name -> options, adapters
    "all": ({"train": "all"}, LoRAConfig()),
    "expert": ({"train": "expert", "noisy_steps": "one"}, LoRAConfig()),
    "learned": ({"train": "all", "noise": "learned"}, LoRAConfig()),
    "lora": ({"train": "expert"}, ALL),
    "five": ({"preset": "tiny_pi05", "train": "all", "noisy_steps": "one"}, LoRAConfig()),
}
NAMES = [*(f"{case}-{sharding}" for case in CASES for sharding in ("none", "full")), "all-full-recomputed"]
SHARES = {100: [[0, 1, 2]], 200: [[0], []], 201: [[1], [2]]}  # 100 * ranks + rank -> micro-batches


def scenario(case: str, settings: dict[str, Any], folder: Path) -> dict[str, Any]:  # Any: weights, numbers
    """Two steps on rows that the untrained policy drew, then an export."""
    options, lora = CASES[case]
    model = flow(valued=True, **options)
    rows = rows_of(model, model.module(3))
    made = trainer(model, lora, **settings)
    norms = train(made, rows, SHARES[100 * made.world.size + made.world.rank])
    values_BT = made.outputs(model.collate(rows), frozenset({"values"})).values_BT
    weights = {n: t.detach().clone() for bucket in made.weights() for n, t in bucket.tensors.items()}
    made.export(folder)
    return {"norms": norms, "weights": weights, "values": values_BT, "sharded": made.sharded}


def main(folder: Path) -> None:
    """Every case."""

    def run(name: str) -> dict[str, Any]:
        case, sharding, *again = name.split("-")
        settings = {"sharding": sharding, "gradient_checkpointing": bool(again)}
        return scenario(case, settings, folder / name)

    keep_results(NAMES, run, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
