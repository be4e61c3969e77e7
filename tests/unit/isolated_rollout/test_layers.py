"""Names and digests of layers that engines fuse, wrap or hold more than once."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

from rlinf_core.isolated_rollout.buckets import digest
from rlinf_core.isolated_rollout.engine import Installed
from rlinf_core.isolated_rollout.layers import installed, placed
from rlinf_core.isolated_rollout.serve import Server
from rlinf_core.isolation.wire import Wire

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
HEADS, GROUPS, SIZE = 8, 2, 4


class Attention(nn.Module):
    """What one of four processes has of eight heads over two groups: two heads, and a whole group."""

    def __init__(self, rank: int, sent: dict[str, torch.Tensor], processes: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_size = HEADS // processes, 1, SIZE
        self.num_kv_head_replicas = processes // GROUPS
        rows, group = self.num_heads * SIZE, rank // self.num_kv_head_replicas
        mine = [sent["q_proj.weight"][rank * rows : (rank + 1) * rows]]
        mine += [sent[f"{part}_proj.weight"][group * SIZE : (group + 1) * SIZE] for part in "kv"]
        self.weight = nn.Parameter(torch.cat(mine), requires_grad=False)


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_keys_and_values_that_processes_hold_more_than_once_fit_what_was_sent(processes: int) -> None:
    sent = {
        f"{part}_proj.weight": torch.randn((HEADS if part == "q" else GROUPS) * SIZE, 3) for part in "qkv"
    }
    totals: dict[tuple[str, ...], list[int]] = {}
    for rank in range(processes):
        model = nn.ModuleDict({"qkv_proj": Attention(rank, sent, processes)})
        for names, tensor in installed(model, FUSED):
            totals.setdefault(tuple(names), []).append(digest([tensor]))
    found = [Installed(names, sum(held) % 2**64, len(held)) for names, held in totals.items()]
    assert sorted(name for each in found for name in each.names) == sorted(sent)
    server = Server(cast("Wire", None), 0)
    server.sent = {name: digest([tensor]) for name, tensor in sent.items()}
    assert all(server._fits(each) for each in found)
    server.sent["k_proj.weight"] += 1
    assert [each.names for each in found if not server._fits(each)] == [
        each.names for each in found if "k_proj.weight" in each.names
    ]


def test_layers_with_adapters_get_their_weights_below_the_wrapping() -> None:
    wrapped = {"model.layers.0.qkv_proj", "lm_head"}
    assert placed("model.layers.0.k_proj.weight", wrapped, FUSED) == "model.layers.0.k_proj.base_layer.weight"
    assert placed("lm_head.weight", wrapped, FUSED) == "lm_head.base_layer.weight"
    assert placed("model.layers.1.k_proj.bias", wrapped, FUSED) == "model.layers.1.k_proj.bias"
