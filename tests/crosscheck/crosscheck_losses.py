"""A policy loss of ours beside a peer's, with gradients and metrics. Axes: B rows, T decision steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from crosscheck_batches import Batch
from torch import Tensor

from rlinf_core.objective import PolicyOptions
from rlinf_core.objective.policy import policy_terms
from rlinf_core.rl.aggregate import denominator

Metrics = dict[str, Any]
Loss = Callable[[Tensor], tuple[Tensor, Metrics]]


def with_gradient(loss: Callable[[Tensor], Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
    """A loss and its gradient."""
    values = values.detach().clone().requires_grad_()
    found = loss(values)
    return found.detach(), torch.autograd.grad(found, values)[0]


def our_loss(batch: Batch, config: PolicyOptions, advantages_BT: Tensor, on_policy: bool = False) -> Loss:
    """The loss of a step that is one batch, and its metrics as they are logged."""

    def loss(logprobs_BT: Tensor) -> tuple[Tensor, Metrics]:
        rows = batch.train_batch(advantages_BT, on_policy)
        terms = policy_terms(batch.outputs(logprobs_BT), rows, config)
        metrics = {name: total / count for name, (total, count) in terms.metrics.items()}
        return terms.total / denominator(batch.mask_BT, config.loss_aggregation), metrics

    return loss


def compare(near: Callable[..., None], name: str, batch: Batch, ours: Loss, theirs: Loss) -> list[Metrics]:
    """Both losses and gradients; the metrics of both."""
    metrics: list[Metrics] = []
    found = []
    for side in (ours, theirs):

        def loss(logprobs_BT: Tensor, side: Loss = side) -> Tensor:
            value, logged = side(logprobs_BT)
            metrics.append(logged)
            return value

        found.append(with_gradient(loss, batch.new_BT))
    near(name, found[0][0], found[1][0], "loss")
    near(name, found[0][1], found[1][1], "gradient")
    return metrics
