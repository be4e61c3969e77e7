"""Runs one micro-batch through the stages of the pipeline, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

Finish = Callable[[Tensor], Tensor]  # hidden states of the last stage -> what is minimised


def run_micro_batch(network: Any, ids_BL: Tensor, length: int, finish: Finish, *, backward: bool) -> None:
    """`length` counts the positions of all ranks that share them. `finish` is called on the last stage alone.
    Any: the network may be wrapped.

    One micro-batch is in the pipeline at a time, so that its loss is known before the next one comes.
    """

    def finished(hidden_SBH: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        return finish(hidden_SBH), torch.zeros((), dtype=torch.int, device=ids_BL.device), {}

    def forward(_batches: Any, stage: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        return stage(ids_BL), finished

    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=None,
        model=[network],
        num_microbatches=1,
        seq_length=length,
        micro_batch_size=len(ids_BL),
        forward_only=not backward,
    )
