"""What the network says of token rows: log-probabilities and entropies, computed on the last stage.

Axes: B rows, S positions, T response positions, H hidden size, N response tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from megatron.core import tensor_parallel
from torch import Tensor
from torch.nn import functional

from rlinf_backend_megatron.head import Choice, Vocabulary, parallel_logprobs
from rlinf_backend_megatron.network import Network
from rlinf_backend_megatron.world import World
from rlinf_core.api import PolicyOutputs, TokenRows
from rlinf_core.types import Sampling


class Judge:
    """Makes policy outputs of a network's hidden states, under one sampling transform."""

    def __init__(self, world: World, vocabulary: int, sampling: Sampling, ends: Collection[int]) -> None:
        self.world = world
        self.tokens = vocabulary
        self.sampling = sampling
        self.ends = tuple(ends)

    def outputs(self, network: Network, hidden_SBH: Tensor, rows: TokenRows) -> PolicyOutputs:
        """`[B, T]` in float32; 0 past a row's end."""
        mask_BT, source_BT = response_positions(rows)
        row_N = mask_BT.nonzero()[:, 0]
        source_N = source_BT[mask_BT]
        hidden_NH = self._whole(hidden_SBH, network)[source_N, row_N]
        choice = self._choice(rows.ids_BS[row_N, source_N + 1], mask_BT)
        weight_VH = network.head_weight()
        logprobs_N, entropy_N = parallel_logprobs(hidden_NH, weight_VH, self._vocabulary(weight_VH), choice)
        return PolicyOutputs(_spread(logprobs_N, mask_BT), _spread(entropy_N, mask_BT))

    def _whole(self, hidden_SBH: Tensor, network: Network) -> Tensor:
        """All positions; in backward the gradient's parts, of each rank's tokens, are summed."""
        group = self.world.tensor_group
        if network.config.sequence_parallel:
            gathered: Tensor = tensor_parallel.gather_from_sequence_parallel_region(
                hidden_SBH, tensor_parallel_output_grad=True, group=group
            )
            return gathered
        copied: Tensor = tensor_parallel.copy_to_tensor_model_parallel_region(hidden_SBH, group=group)
        return copied

    def _choice(self, ids_N: Tensor, mask_BT: Tensor) -> Choice:
        least = self.sampling.min_new_tokens
        early_N = mask_BT.nonzero()[:, 1] < least if least else None
        return Choice(ids_N, self.sampling, early_N, self.ends if least else ())

    def _vocabulary(self, weight_VH: Tensor) -> Vocabulary:
        size = len(weight_VH)
        group = self.world.tensor_group if self.world.layout.tensor > 1 else None
        return Vocabulary(self.world.tensor_rank * size, size, self.tokens, group)


def response_positions(rows: TokenRows) -> tuple[Tensor, Tensor]:
    """The response mask `[B, T]`, and the position that predicts each response token."""
    steps_T = torch.arange(rows.width, device=rows.ids_BS.device)
    mask_BT = steps_T < rows.response_lengths_B[:, None]
    return mask_BT, steps_T + rows.prompt_lengths_B[:, None] - 1


def network_ids(rows: TokenRows, multiple: int) -> Tensor:
    """What the network reads: all but the last position, which predicts nothing, padded to a multiple."""
    ids_BS = rows.ids_BS[:, :-1]
    return functional.pad(ids_BS, (0, -ids_BS.shape[1] % multiple))


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    return values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)
