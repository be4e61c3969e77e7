"""verl's own functions on our batches. Axes: B rows, T decision steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from crosscheck_batches import Batch
from crosscheck_losses import Loss, Metrics
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils import tensordict_utils
from verl.utils import torch_functional as functional
from verl.workers.config import ActorConfig, CriticConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

__all__ = ["core_algos", "functional"]

GROUPED = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "reinforce_plus_plus_baseline")


def actor(**options: Any) -> ActorConfig:
    """verl's config of an actor, with what it insists on filled in."""
    needed = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    loss_mode = options.pop("loss_mode", "vanilla")
    return ActorConfig(**needed, policy_loss=PolicyLossConfig(loss_mode=loss_mode), **options)


def policy_loss(
    batch: Batch, advantages_BT: Tensor, weights_BT: Tensor | None = None, **options: Any
) -> Loss:
    """The registered loss of `loss_mode` with its metrics."""
    config = actor(**options)
    config.global_batch_info["loss_scale_factor"] = config.loss_scale_factor

    def loss(logprobs_BT: Tensor) -> tuple[Tensor, Metrics]:
        found, metrics = core_algos.get_policy_loss_fn(config.policy_loss.loss_mode)(
            old_log_prob=batch.old_BT,
            log_prob=logprobs_BT,
            advantages=advantages_BT,
            response_mask=batch.weights_BT,
            loss_agg_mode=config.loss_agg_mode,
            config=config,
            rollout_is_weights=weights_BT,
        )
        return found, {name.removeprefix("actor/"): value for name, value in metrics.items()}

    return loss


def whole_loss(batch: Batch, **options: Any) -> Loss:
    """What verl's actor minimises: policy loss, KL to the reference, entropy."""
    rows, steps = batch.mask_BT.shape
    columns = {
        "prompts": torch.zeros(rows, 1, dtype=torch.long),
        "responses": torch.zeros(rows, steps, dtype=torch.long),
        "attention_mask": torch.ones(rows, 1 + steps, dtype=torch.long),
        "response_mask": batch.mask_BT,
        "old_log_probs": batch.old_BT,
        "advantages": batch.advantages_BT,
        "ref_log_prob": batch.reference_BT,
    }
    data = TensorDict(columns, batch_size=rows)
    for name, value in {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}.items():
        tensordict_utils.assign_non_tensor_data(data, name, value)

    def packed(values_BT: Tensor) -> Tensor:
        """One row after the other, each with a prompt of one token, predicted one place to the left."""
        return torch.nn.functional.pad(values_BT, (0, 1)).flatten()

    def loss(logprobs_BT: Tensor) -> tuple[Tensor, Metrics]:
        outputs = {"log_probs": packed(logprobs_BT), "entropy": packed(batch.entropy_BT)}
        return ppo_loss(actor(**options), outputs, data)

    return loss


def outcome_advantages(name: str, batch: Batch, gamma: float = 1.0, **options: Any) -> Tensor:
    """Advantages by one of verl's estimators, 0 off the mask."""
    rewards_BT = batch.rewards_BT
    if name in GROUPED:
        options["index"] = np.array([f"prompt {group}" for group in batch.groups_B.tolist()], dtype=object)
        rewards_BT = torch.nn.functional.pad(batch.rewards_B[:, None], (0, batch.mask_BT.shape[1] - 1))
    rewards_BT = options.pop("rewards_BT", rewards_BT).clone()  # verl writes into it
    advantages_BT, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=rewards_BT,
        response_mask=batch.weights_BT,
        config=AlgoConfig(gamma=gamma),
        **options,
    )
    return advantages_BT * batch.weights_BT


def gae(batch: Batch, rewards_BT: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Whitened advantages and returns, 0 off the mask."""
    found = core_algos.compute_gae_advantage_return(
        rewards_BT, batch.old_values_BT, batch.weights_BT, gamma, lam
    )
    return found[0] * batch.weights_BT, found[1] * batch.weights_BT


def penalised_rewards(batch: Batch, controller: Any, estimator: str) -> Tensor:
    """Outcome rewards less the KL to the reference, whose coefficient the controller holds."""
    data = DataProto.from_dict(
        {
            "response_mask": batch.weights_BT,
            "token_level_scores": batch.outcome_BT(),
            "old_log_probs": batch.old_BT,
            "ref_log_prob": batch.reference_BT,
        }
    )
    found, _ = apply_kl_penalty(data, controller, kl_penalty=estimator)
    return found.batch["token_level_rewards"]


def rollout_weights(batch: Batch, level: str, threshold: float | str) -> Tensor:
    """Weights for the gap between rollout and trainer."""
    return compute_rollout_correction_weights(
        batch.old_BT - batch.rollout_BT, batch.weights_BT, level, threshold
    )[0]


def default_value_loss(value: float, old: float, wanted: float) -> Tensor:
    """Of one value, at the clip of verl's default critic."""
    critic = CriticConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1)
    columns = (torch.tensor([[number]]) for number in (value, wanted, old, 1.0))
    return core_algos.compute_value_loss(*columns, critic.cliprange_value)[0]
