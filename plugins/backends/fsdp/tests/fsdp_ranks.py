"""What one rank does in the tests of several ranks; run as `fsdp_ranks.py FOLDER`. Axes: B rows, T tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
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
from rlinf_core.shelf import storages
from rlinf_core.testing.ranks import keep_results
from rlinf_core.types import Experience, Sampling

ROWS, TOKENS, VOCAB = 7, 9, 16
OPTIMIZER = OptimizerConfig(
    lr=1e-2, eps=1e-6, weight_decay=0.1, grad_clip=0.05, schedule="cosine", warmup_steps=2
)
NO_LORA, LORA = LoRAConfig(), LoRAConfig(rank=4, alpha=8.0)
LOGPROBS: frozenset[Want] = frozenset({"logprobs"})
VALUED: frozenset[Want] = frozenset({"logprobs", "values"})
CASES = {  # name -> adapters, value head
    "whole": (NO_LORA, False),
    "lora": (LORA, False),
    "whole_valued": (NO_LORA, True),
    "lora_valued": (LORA, True),
}


class TinyLlama(Model):
    """A two-layer Llama with tied embeddings that says the log-probabilities of its input, and values."""

    valued = False

    def add_value_head(self) -> None:
        self.valued = True

    def value_head(self, module: nn.Module) -> nn.Module | None:
        return next((part for name, part in module.named_modules() if name.endswith("value_head")), None)

    def module(self, seed: int = 0) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": VOCAB, "num_hidden_layers": 2}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = LlamaForCausalLM(
                LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
            )
            if self.valued:
                module.value_head = nn.Linear(32, 1)
        return module

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
        outputs = module(input_ids=ids_BS[:, :-1], use_cache=False, output_hidden_states=True)
        logprobs_BTV = outputs.logits.float().log_softmax(-1)
        logprobs_BT = logprobs_BTV.gather(-1, ids_BS[:, 1:, None]).squeeze(-1)
        head = self.value_head(module)
        if "values" not in want or head is None:
            return PolicyOutputs(logprobs_BT)
        with torch.autocast("cpu", enabled=False):
            values_BT = head(outputs.hidden_states[-1].float()).squeeze(-1)
        return PolicyOutputs(logprobs_BT, values_BT=values_BT)

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        return [part for part in module.modules() if type(part).__name__ == "LlamaDecoderLayer"]

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        torch.save({name: tensor.clone() for name, tensor in state}, path / "weights.pt")


def build(lora: LoRAConfig = NO_LORA, optimizer: OptimizerConfig = OPTIMIZER, **settings: Any) -> FSDPTrainer:
    """A trainer of this process; `settings` are those of the backend. Any: their values."""
    keep = settings.pop("keep_reference", False)
    model = TinyLlama(None)
    if settings.pop("valued", False):
        model.add_value_head()
    context = TrainerContext(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        seed=3,
        total_steps=10,
    )
    return FSDPBackend(FSDPConfig(**settings)).build(model, optimizer, lora, context, keep_reference=keep)


def batch(step: int, rows: Sequence[int]) -> TrainBatch:
    """Some rows of a step's data; no rows give one whose mask is all False."""
    generator = torch.Generator().manual_seed(step)
    ids_BS = torch.randint(VOCAB, (ROWS, TOKENS + 1), generator=generator)
    advantages_B = torch.randn(ROWS, generator=generator)
    mask_BT = torch.arange(TOKENS) < torch.arange(3, 3 + ROWS)[:, None]
    chosen = list(rows) or [0]
    return TrainBatch(
        inputs={"ids": ids_BS[chosen]},
        mask_BT=mask_BT[chosen] & bool(rows),
        advantages_BT=advantages_B[chosen, None] * mask_BT[chosen],
        rollout_logprobs_BT=torch.zeros(len(chosen), TOKENS),
    )


def loss(outputs: PolicyOutputs, rows: TrainBatch) -> LossTerms:
    """Policy gradient, summed; values learn the advantages."""
    total = -(outputs.logprobs_BT * rows.advantages_BT)[rows.mask_BT].sum()
    if outputs.values_BT is not None:
        total = total + (outputs.values_BT - rows.advantages_BT)[rows.mask_BT].square().sum()
    return LossTerms(total, {"loss": (total.detach(), rows.mask_BT.sum())})


def train(trainer: FSDPTrainer, steps: Sequence[int]) -> list[float]:
    """Steps on this rank's share; returns the gradient norms."""
    norms = []
    want = VALUED if trainer.model.value_head(trainer.policy.inner) is not None else LOGPROBS
    for step in steps:
        for rows in SPLITS[100 * trainer.world.size + trainer.world.rank]:
            trainer.accumulate(batch(step, rows), loss, want)
        norms.append(trainer.step(42.0).grad_norm)
    return norms


SPLITS = {  # 100 * world size + rank -> micro-batches; unequal, some empty
    100: [[0, 1, 2, 3, 4, 5, 6]],
    200: [[0, 1, 2], [3, 4]],
    201: [[5, 6], []],
    300: [[0, 1], [2], [3]],
    301: [[], [], []],
    302: [[6, 5], [], [4]],
}


def weights(trainer: FSDPTrainer, **options: bool) -> dict[str, Tensor]:
    """Copies of the current weights."""
    return {n: t.detach().clone() for bucket in trainer.weights(**options) for n, t in bucket.tensors.items()}


def parts_are_right(trainer: FSDPTrainer, whole: dict[str, Tensor]) -> bool:
    """Whether what ranks hold of each weight is in its place, and all of it is held."""
    parts = trainer.parts()
    held = {name: part for bucket in parts or () for name, part in bucket.items()}
    flat = {name: tensor.reshape(-1) for name, tensor in whole.items()}
    right = all(
        torch.equal(flat[name][part.begin : part.begin + part.held.numel()], part.held.reshape(-1))
        and part.shape == whole[name].shape
        for name, part in held.items()
    )
    count = trainer.all_sum([float(sum(part.held.numel() for part in held.values())), float(right)])
    wanted = sum(tensor.numel() for tensor in whole.values()) if trainer.sharded else 0
    return count == [wanted, trainer.world.size]


def scenario(case: str, sharding: str, folder: Path) -> dict[str, Any]:  # Any: numbers and weights
    """Three steps, a checkpoint, two more, an export; the two again with an absence between them."""
    lora, valued = CASES[case]
    trainer = build(lora, sharding=sharding, keep_reference=True, valued=valued)
    before = trainer.outputs(batch(0, range(ROWS)).inputs, LOGPROBS).logprobs_BT
    norms = train(trainer, range(3))
    trainer.save(folder / "checkpoint")
    norms += train(trainer, range(3, 5))
    found = weights(trainer)
    values_BT = trainer.outputs(batch(0, range(ROWS)).inputs, VALUED).values_BT
    trainer.export(folder / "export")
    reference = trainer.outputs(batch(0, range(ROWS)).inputs, LOGPROBS, reference=True).logprobs_BT
    trainer.load(folder / "checkpoint")
    train(trainer, [3])
    trainer.host_is_elsewhere = True
    trainer.offload()
    left = storages([*trainer.policy.parameters(), *trainer.optimizer.tensors()]).values()
    left_bytes = sum(storage.nbytes() for storage in left)
    train(trainer, [4])
    again = weights(trainer)
    return {
        "norms": norms,
        "weights": found,
        "values": values_BT,
        "left_bytes": left_bytes,
        "resumed": all(torch.equal(found[name], again[name]) for name in found),
        "reference_gap": float((before - reference).abs().max()),
        "sum": trainer.all_sum([0.1, float(trainer.world.rank)]),
        "parts": parts_are_right(trainer, again),
        "trainable": len(weights(trainer, trainable_only=True)),
        "sharded": trainer.sharded,
    }


def main(folder: Path) -> None:
    """Every scenario."""

    def run(name: str) -> dict[str, Any]:
        return scenario(*name.rsplit("-", 1), folder / name)

    keep_results([f"{case}-{sharding}" for case in CASES for sharding in ("none", "full")], run, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
