"""Claim: on rows of long-tailed lengths a training step without padding takes a fraction of a padded one.

Three ways make the same step (log-probabilities and entropies forward, backward, one optimizer step) of the
same small model on the same rows, every prompt once, responses of log-normal lengths:

- packed: what a run does, micro-batches of `--budget` real tokens;
- padded: `--rows-per-batch` rows at a time in the order they came in, padded to the longest of them, as where
  nothing is packed or sorted (`model.packing: never`);
- sorted: as padded, but rows of similar length together, at most `--budget` padded tokens.

All three fill micro-batches of about as many tokens. Rounds alternate; medians. Keys: `speedup`, time of
padded over packed; `speedup_over_sorted`; of each way `..._real_share`, real tokens among those that the
blocks compute; `gradient_gap`, the largest difference of gradients between ways over their norm.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from common import finish, say
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM
from torch import Tensor

from rlinf_core.api import LoRAConfig, LossTerms, OptimizerConfig, PolicyOutputs, TrainBatch, TrainerContext
from rlinf_core.roles.batching import padded_micro_batches, rank_micro_batches, row_tokens
from rlinf_core.types import Prompt, Sample

PRESET = "tiny-qwen2"
VOCABULARY = (3, 100)
NAMES = ("packed", "padded", "sorted")


class Way:
    """A trainer, the micro-batches that it is given, and what they cost."""

    def __init__(self, packing: str) -> None:
        self.model = HFLM(HFLMConfig(preset=PRESET, packing=packing))
        optimizer = OptimizerConfig(lr=0.0)  # every round is the same step
        self.trainer = FSDPBackend(FSDPConfig()).build(self.model, optimizer, LoRAConfig(), TrainerContext())
        self.parts: list[list[int]] = []
        self.times: list[float] = []
        self.computed = 0
        block = self.trainer.policy.inner.model.layers[0]
        block.mlp.gate_proj.register_forward_hook(self._count)

    def step(self, rows: Sequence[Sample]) -> None:
        """One training step, collation included."""
        self.computed = 0
        began = time.perf_counter()
        for part in self.parts:
            chosen = [rows[i] for i in part]
            width = max(len(row.response_ids) for row in chosen)
            mask_BT = torch.arange(width) < torch.tensor([row.length for row in chosen])[:, None]
            advantages_BT = torch.tensor([row.reward for row in chosen])[:, None] * mask_BT
            inputs = self.model.collate(chosen, width)
            self.trainer.accumulate(
                TrainBatch(inputs, mask_BT, advantages_BT, torch.zeros(mask_BT.shape)), loss
            )
        self.trainer.step(float(sum(row.length for row in rows)))
        self.times.append(time.perf_counter() - began)

    def gradient(self, rows: Sequence[Sample]) -> Tensor:
        """Of the same loss, before the optimizer step; not timed."""
        kept: list[Tensor] = []
        take = self.trainer.optimizer.step

        def keep(denominator: float) -> object:
            named = self.trainer.policy.named()
            kept.extend(p.grad.flatten().clone() for _, p in named if p.grad is not None)
            return take(denominator)

        self.trainer.optimizer.step = keep  # type: ignore[assignment,method-assign]
        self.step(rows)
        self.trainer.optimizer.step = take  # type: ignore[method-assign]
        self.times.clear()
        return torch.cat(kept)

    def _count(self, _module: object, args: tuple[Tensor, ...], _output: Tensor) -> None:
        self.computed += args[0].shape[:-1].numel()


def loss(outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
    """A policy gradient with an entropy bonus."""
    entropy_BT = outputs.entropy_BT
    assert entropy_BT is not None
    total = -((outputs.logprobs_BT * batch.advantages_BT) + 0.01 * entropy_BT)[batch.mask_BT].sum()
    return LossTerms(total, {})


def make_rows(asked: argparse.Namespace) -> list[Sample]:
    """Rows as they come in: lengths in no order."""
    rng = np.random.default_rng(asked.seed)
    rows = []
    for index in range(asked.rows):
        drawn = int(rng.lognormal(np.log(asked.median), asked.sigma))
        length = int(np.clip(drawn, asked.shortest, asked.longest))
        prompt = rng.integers(*VOCABULARY, int(rng.integers(32, 97)))
        rows.append(
            Sample(
                group=index,
                replica=0,
                seed=index,
                mask=np.ones(length, bool),
                logprobs=np.zeros(length, np.float32),
                weight_version=0,
                reward=float(rng.normal()),
                prompt=Prompt(index, prompt, ""),
                response_ids=rng.integers(*VOCABULARY, length),
            )
        )
    return rows


def make_ways(rows: Sequence[Sample], asked: argparse.Namespace) -> dict[str, Way]:
    """Each with its micro-batches."""
    ways = {name: Way("always" if name == "packed" else "never") for name in NAMES}
    everyone, tokens = range(len(rows)), [row_tokens(row) for row in rows]
    costs = [ways["packed"].model.row_cost(count) for count in tokens]
    ways["packed"].parts = rank_micro_batches(
        everyone, tokens, 1, asked.budget, costs=costs, groups=list(everyone)
    )[0]
    size = asked.rows_per_batch
    ways["padded"].parts = [list(everyone[begin : begin + size]) for begin in everyone[::size]]
    ways["sorted"].parts = padded_micro_batches(everyone, tokens, asked.budget)
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--median", type=float, default=180.0, help="of response lengths")
    parser.add_argument("--sigma", type=float, default=0.9, help="of the logarithm of response lengths")
    parser.add_argument("--shortest", type=int, default=64)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--rows-per-batch", type=int, default=8, help="of the padded way")
    parser.add_argument("--budget", type=int, default=6144, help="tokens of a micro-batch of the other ways")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = make_rows(asked)
    ways = make_ways(rows, asked)
    gradients = {name: way.gradient(rows) for name, way in ways.items()}  # also the round that warms up
    for _ in range(asked.rounds):
        for way in ways.values():
            way.step(rows)
    medians = {name: statistics.median(way.times) for name, way in ways.items()}
    real = sum(row_tokens(row) for row in rows)
    for name, way in ways.items():
        say(
            f"{name:7} {medians[name]:.2f} s a step, {len(way.parts)} micro-batches, "
            f"{way.computed} tokens computed, {real} real"
        )
    gap = max(float((gradients[name] - gradients["packed"]).norm()) for name in NAMES)
    finish(
        {
            "speedup": medians["padded"] / medians["packed"],
            "speedup_over_sorted": medians["sorted"] / medians["packed"],
            **{f"{name}_real_share": (real - len(rows)) / way.computed for name, way in ways.items()},
            "gradient_gap": gap / float(gradients["packed"].norm()),
            "rows": asked.rows,
            "longest_over_mean": max(map(row_tokens, rows)) * len(rows) / real,
        },
        "rlinf-core",
        "torch",
        "transformers",
    )


if __name__ == "__main__":
    main()
