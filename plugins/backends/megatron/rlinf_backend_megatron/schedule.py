"""Runs micro-batches through the stages of the pipeline, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from rlinf_backend_megatron.policy import Reading


@dataclass(frozen=True)
class MicroBatch:
    """What a network reads, and what becomes of the last stage's hidden states: what is minimised."""

    reading: Reading
    finish: Callable[[Tensor], Tensor]


def run(network: Any, batches: Iterator[MicroBatch], count: int, *, backward: bool) -> None:
    """Any: the network may be wrapped.

    As many of them are under way as the pipeline has stages, one forward and one backward in turn (1F1B);
    gradients add up in the order of the micro-batches. A batch is made when its turn comes.
    """

    def forward(given: Iterator[MicroBatch], stage: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        batch = next(given)

        def finished(hidden_LBH: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
            return batch.finish(hidden_LBH), torch.zeros((), dtype=torch.int, device=hidden_LBH.device), {}

        return stage(batch.reading.ids_BL, batch.reading.packed), finished

    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=batches,
        model=[network],
        num_microbatches=count,
        seq_length=1,  # stages tell one another how large their tensors are
        micro_batch_size=1,
        forward_only=not backward,
    )
