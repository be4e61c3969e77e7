"""What the network says of token rows: log-probabilities and entropies, computed on the last stage.

Axes: B rows, S positions, L those whose hidden states a rank has, T response positions, H hidden size, N
response tokens of all rows, M those that this rank judges.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from megatron.core import tensor_parallel
from torch import Tensor
from torch.nn import functional

from rlinf_backend_megatron.context import places_in, positions_of
from rlinf_backend_megatron.head import Choice, Vocabulary, parallel_logprobs
from rlinf_backend_megatron.network import Network
from rlinf_backend_megatron.packing import PackedRows, packed_line
from rlinf_backend_megatron.world import World
from rlinf_core.api import POLICY, PolicyOutputs, TokenRows, Want
from rlinf_core.types import Sampling


@dataclass(frozen=True)
class Reading:
    """What this rank's network reads of rows: padded ones, or all of them in one line."""

    ids_BL: Tensor
    packed: PackedRows | None = None
    begin_B: Tensor | None = None  # of each row in the line


class Judge:
    """Makes policy outputs of a network's hidden states, under one sampling transform."""

    def __init__(
        self,
        world: World,
        vocabulary: int,
        sampling: Sampling,
        ends: Collection[int],
        *,
        multiple: int,
        packs: bool,
    ) -> None:
        self.world = world
        self.tokens = vocabulary
        self.sampling = sampling
        self.ends = tuple(ends)
        self.multiple = multiple
        self.packs = packs

    def reading(self, rows: TokenRows) -> Reading:
        """All but the last position of a row, which predicts nothing, padded to a multiple of what ranks
        share."""
        if self.packs:
            lengths_B = (rows.prompt_lengths_B + rows.response_lengths_B - 1).clamp_min(1).tolist()
            line = packed_line(lengths_B, rows.ids_BS.shape[1], self.multiple, rows.ids_BS.device)
            return Reading(rows.ids_BS.flatten()[line.source_P][None], line.rows, line.begin_B)
        ids_BS = rows.ids_BS[:, :-1]
        ids_BS = functional.pad(ids_BS, (0, -ids_BS.shape[1] % self.multiple))
        mine_L = positions_of(ids_BS.shape[1], self.world.context_rank, self.world.layout.context)
        return Reading(ids_BS[:, mine_L.to(ids_BS.device)])

    def outputs(
        self,
        network: Network,
        hidden_LBH: Tensor,
        rows: TokenRows,
        reading: Reading,
        want: frozenset[Want] = POLICY,
    ) -> PolicyOutputs:
        """`[B, T]` in float32; 0 past a row's end, and where nothing is wanted."""
        mask_BT, source_BT = response_positions(rows)
        row_N, source_N = mask_BT.nonzero()[:, 0], source_BT[mask_BT]
        place_N = self._places(reading, row_N, source_N)
        mine_N = place_N >= 0
        found = PolicyOutputs(torch.zeros(mask_BT.shape, device=mask_BT.device))
        if "values" in want:
            hidden_MH = self._replicated(hidden_LBH, network).flatten(0, 1)[place_N[mine_N]]
            values_N = self._of_all(network.values(hidden_MH), mine_N)
            found.values_BT = _spread(values_N, mask_BT)
        if want & POLICY:
            ids_N = rows.ids_BS[row_N, source_N + 1]
            early_N = mask_BT.nonzero()[:, 1] < self.sampling.min_new_tokens
            hidden_MH = self._whole(hidden_LBH, network).flatten(0, 1)[place_N[mine_N]]
            choice = self._choice(ids_N[mine_N], early_N[mine_N])
            both = self._judged(network, hidden_MH, choice)
            found.logprobs_BT, found.entropy_BT = (
                _spread(self._of_all(values_M, mine_N), mask_BT) for values_M in both
            )
        return found

    def _judged(self, network: Network, hidden_MH: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
        weight_VH = network.head_weight()
        return parallel_logprobs(hidden_MH, weight_VH, self._vocabulary(weight_VH), choice)

    def _places(self, reading: Reading, row_N: Tensor, source_N: Tensor) -> Tensor:
        """Where positions of rows lie in this rank's `[L * B]` hidden states; negative = on another rank."""
        if reading.begin_B is not None:
            return reading.begin_B[row_N] + source_N
        rows, local = reading.ids_BL.shape
        size = self.world.layout.context
        mine_L = positions_of(local * size, self.world.context_rank, size).to(source_N.device)
        place_N = places_in(mine_L, local * size)[source_N]
        return torch.where(place_N < 0, place_N, place_N * rows + row_N)

    def _of_all(self, values_M: Tensor, mine_N: Tensor) -> Tensor:
        """The values of all ranks' positions; in backward each rank takes the gradient of its own."""
        values_N = values_M.new_zeros(mine_N.shape).masked_scatter(mine_N, values_M)
        if self.world.layout.context == 1:
            return values_N
        summed: Tensor = tensor_parallel.reduce_from_tensor_model_parallel_region(
            values_N, group=self.world.context_group
        )
        return summed

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

    def _replicated(self, hidden_SBH: Tensor, network: Network) -> Tensor:
        """All positions, for what each of the ranks that share matrices computes by itself."""
        if not network.config.sequence_parallel:
            return hidden_SBH
        gathered: Tensor = tensor_parallel.gather_from_sequence_parallel_region(
            hidden_SBH, tensor_parallel_output_grad=False, group=self.world.tensor_group
        )
        return gathered

    def _choice(self, ids_N: Tensor, early_N: Tensor) -> Choice:
        if not self.sampling.min_new_tokens:
            return Choice(ids_N, self.sampling)
        return Choice(ids_N, self.sampling, early_N, self.ends)

    def _vocabulary(self, weight_VH: Tensor) -> Vocabulary:
        size = len(weight_VH)
        group = self.world.tensor_group if self.world.layout.tensor > 1 else None
        return Vocabulary(self.world.tensor_rank * size, size, self.tokens, group)


def response_positions(rows: TokenRows) -> tuple[Tensor, Tensor]:
    """The response mask `[B, T]`, and the position that predicts each response token."""
    steps_T = torch.arange(rows.width, device=rows.ids_BS.device)
    mask_BT = steps_T < rows.response_lengths_B[:, None]
    return mask_BT, steps_T + rows.prompt_lengths_B[:, None] - 1


def _spread(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    return values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)
