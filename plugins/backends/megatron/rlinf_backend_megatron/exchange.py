"""Weights between the Hugging Face names and this rank's shards, one piece at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from rlinf_backend_megatron.architecture import Architecture
from rlinf_backend_megatron.mapping import Form, Piece, head_of_tied, join, merge, part, pieces, shard
from rlinf_backend_megatron.network import Network
from rlinf_backend_megatron.world import World


class Exchange:
    """Between one network and Hugging Face names. No rank ever holds more than one piece, such as the
    experts of one layer, beside its own shards."""

    def __init__(
        self, network: Network, model: Architecture, world: World, extra: Sequence[Piece] = ()
    ) -> None:
        self.model = model
        self.world = world
        self.pieces = [*pieces(model), *extra]
        self.padded = model.padded_vocabulary(world.layout.tensor)
        self._parameters: dict[str, nn.Parameter] = dict(network.named_parameters())
        self._layers = {
            layer.layer_number - 1: f"decoder.layers.{index}."
            for index, layer in enumerate(network.decoder.layers)
        }

    @torch.no_grad()
    def fill(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's shards out of whole Hugging Face tensors."""
        found = list(self.pieces)
        if self.model.tied and self.world.layout.pipeline > 1:
            found.append(head_of_tied(self.model))
        for piece in found:
            if self._stage(piece) != self.world.stage:
                continue
            tensors = [state[name].detach() for name in piece.hf]
            if piece.split == "experts":
                for parameter, expert in zip(self._experts(piece), self._my_experts(tensors[0]), strict=True):
                    parameter.copy_(expert)
                continue
            whole = join(piece, tensors, self.model, self.padded)
            mine = shard(piece, whole, self.world.tensor_rank, self.world.layout.tensor)
            self._parameter(piece).copy_(mine)

    def stream(self, forms: Mapping[str, Form], *, extra_alone: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by Hugging Face name, on every rank, piece by piece; a collective."""
        for piece in self.pieces:
            if extra_alone and not piece.extra:
                continue
            owner = self._stage(piece)
            if owner == self.world.stage:
                tensors = self._gathered(piece)
            else:
                tensors = [
                    torch.empty(forms[name].shape, dtype=forms[name].dtype, device=self.world.device)
                    for name in piece.hf
                ]
            for name, tensor in zip(piece.hf, tensors, strict=True):
                yield name, self.world.from_stage(tensor.contiguous(), owner)

    def _gathered(self, piece: Piece) -> list[Tensor]:
        if piece.split == "experts":
            local = torch.stack([parameter.detach() for parameter in self._experts(piece)])
            return [torch.cat(self.world.gather_experts(local))]
        shards = self.world.gather_tensor_parallel(self._parameter(piece).detach())
        return part(piece, merge(piece, shards), self.model)

    def _my_experts(self, experts_XFE: Tensor) -> Tensor:
        return experts_XFE.chunk(self.world.layout.expert)[self.world.expert_rank]

    def _experts(self, piece: Piece) -> list[nn.Parameter]:
        count = self.model.experts.count // self.world.layout.expert if self.model.experts else 0
        prefix = self._layers[piece.layer or 0]
        return [self._parameters[prefix + piece.megatron[0].format(x=x)] for x in range(count)]

    def _parameter(self, piece: Piece) -> nn.Parameter:
        prefix = "" if piece.layer is None else self._layers[piece.layer]
        names = [prefix + name for name in piece.megatron if prefix + name in self._parameters]
        return self._parameters[names[0]]

    def _stage(self, piece: Piece) -> int:
        stages = self.world.layout.pipeline
        if piece.layer is None:
            return stages - 1 if piece.last else 0
        return piece.layer // (self.model.layers // stages)
