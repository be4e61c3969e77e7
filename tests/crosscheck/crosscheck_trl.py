"""TRL's own trainers, without model and files, on our batches. Axes: B rows, T decision steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from crosscheck_batches import Batch
from crosscheck_losses import Loss, Metrics
from torch import Tensor
from trl import GRPOTrainer, RLOOTrainer
from trl.rewards import get_soft_overlong_punishment

__all__ = ["GRPOTrainer", "get_soft_overlong_punishment"]

ARGUMENTS: dict[str, Any] = {
    "delta": None,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing_kwargs": None,
    "per_device_train_batch_size": 1,
    "steps_per_generation": 1,
    "use_bias_correction_kl": False,
}
ATTRIBUTES: dict[str, Any] = {
    "aux_loss_enabled": False,
    "beta": 0.0,
    "current_gradient_accumulation_steps": 1,
    "entropy_coef": 0.0,
    "epsilon_high": 0.2,
    "epsilon_low": 0.2,
    "importance_sampling_level": "token",
    "loss_type": "dapo",
    "mask_truncated_completions": False,
    "max_completion_length": 1,
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "use_adaptive_entropy": False,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
}
SCORING: dict[str, Any] = {
    "environment_factories": None,
    "environments": None,
    "multi_objective_aggregation": "sum_then_normalize",
    "normalize_advantages": False,
    "num_iterations": 1,
    "pad_to_multiple_of": None,
    "reward_clip_range": None,
    "reward_func_names": ["reward"],
    "scale_rewards": "group",
    "tools": None,
}


class Accelerator:
    """One process on the CPU."""

    device = torch.device("cpu")
    process_index = 0
    num_processes = 1
    sync_gradients = True

    @staticmethod
    def gather(values: Tensor) -> Tensor:
        return values

    @staticmethod
    def reduce(values: Tensor, reduction: str) -> Tensor:
        return values


def trainer(kind: type, **options: Any) -> Any:
    """A trainer that was not constructed: its methods are TRL's, its attributes are these."""
    made = object.__new__(kind)
    arguments = {name: options.pop(name, value) for name, value in ARGUMENTS.items()}
    for name, value in {**ATTRIBUTES, **options}.items():
        setattr(made, name, value)
    made.accelerator, made.model = Accelerator(), torch.nn.Identity()
    made.args = SimpleNamespace(**arguments)
    made._entropy_bonus_enabled = made.entropy_coef != 0.0
    made._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    return made


def grpo_loss(batch: Batch, advantages: Tensor, on_policy: bool = False, **options: Any) -> Loss:
    """`GRPOTrainer._compute_loss` with its metrics; gaps are what a tool wrote."""
    inputs = {
        **_tokens(batch),
        "completion_mask": torch.ones_like(batch.weights_BT),
        "tool_mask": batch.weights_BT,
        "advantages": advantages,
        "num_items_in_batch": batch.mask_BT.sum(),
        "ref_per_token_logps": batch.reference_BT,
    }
    if not on_policy:
        inputs["old_per_token_logps"] = batch.old_BT

    def loss(logprobs_BT: Tensor) -> tuple[Tensor, Metrics]:
        made = trainer(GRPOTrainer, **options)
        made._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs_BT, batch.entropy_BT, None)
        found = made._compute_loss(made.model, inputs)
        return found, {name: values[0] for name, values in made._metrics["train"].items()}

    return loss


def rloo_loss(batch: Batch, advantages_B: Tensor, old_BT: Tensor | None = None, **options: Any) -> Loss:
    """`RLOOTrainer._compute_loss`; without old log-probabilities it is on policy."""

    def loss(logprobs_BT: Tensor) -> tuple[Tensor, Metrics]:
        made = trainer(RLOOTrainer, **options)
        made._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs_BT, batch.entropy_BT, None)
        old = logprobs_BT.detach() if old_BT is None else old_BT
        inputs = {
            **_tokens(batch),
            "completion_mask": batch.weights_BT,
            "advantages": advantages_B,
            "old_logps": (old * batch.weights_BT).sum(-1),
        }
        return made._compute_loss(made.model, inputs), {}

    return loss


def _tokens(batch: Batch) -> dict[str, Tensor]:
    """Ids that nobody looks at."""
    rows, steps = batch.mask_BT.shape
    ids_B1 = torch.ones(rows, 1, dtype=torch.long)
    return {
        "prompt_ids": ids_B1,
        "prompt_mask": ids_B1,
        "completion_ids": torch.ones(rows, steps, dtype=torch.long),
    }


def scored(kind: type, batch: Batch, unscored: Sequence[int] = (), **options: Any) -> dict[str, Tensor]:
    """`_generate_and_score_completions`, whose responses and rewards are the batch's; rows `unscored` have
    no reward. Rows have no gaps, and groups are blocks of one size."""
    lengths = batch.mask_BT.sum(-1).tolist()
    sampled = [row[:length].tolist() for row, length in zip(batch.rollout_BT, lengths, strict=True)]
    prompts, completions = [[1]] * len(lengths), [[1] * length for length in lengths]
    generated = [prompts, completions, None, completions, sampled, {}, None, []]
    rewards_B1 = batch.rewards_B[:, None].clone()
    rewards_B1[list(unscored)] = torch.nan
    made = trainer(kind, **{**SCORING, **options})
    made._generate = lambda _: generated if kind is GRPOTrainer else (prompts, completions, completions)
    made._calculate_rewards = lambda *_: rewards_B1
    made._get_per_token_logps_and_entropies = lambda *_, **__: (batch.old_BT[:, : max(lengths)], None, None)
    made._logs = defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list))
    made._pending_extra_logs, made._pending_metrics = {}, {}
    made._tokenizer = SimpleNamespace(pad_token_id=0)
    made.model.is_gradient_checkpointing = False
    made.num_generations = int((batch.groups_B == batch.groups_B[0]).sum())
    made.reward_weights = torch.ones(1, dtype=batch.rewards_B.dtype)
    return made._generate_and_score_completions([{"prompt": "p"} for _ in lengths])


def grpo_advantages(batch: Batch, **options: Any) -> Tensor:
    """`[B]`, of `GRPOTrainer`."""
    return scored(GRPOTrainer, batch, **options)["advantages"]


def rloo_advantages(batch: Batch, **options: Any) -> Tensor:
    """`[B]`, of `RLOOTrainer`."""
    return scored(RLOOTrainer, batch, **options)["advantages"]
