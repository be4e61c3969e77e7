"""Weights as they leave a trainer: in buckets, whole or as this rank holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from torch import nn

from rlinf_backend_fsdp.checkpoint import targets
from rlinf_core.api import WeightPart

BUCKET_BYTES = 64 << 20


def in_buckets(
    named: Iterable[tuple[str, nn.Parameter]], *, trainable_only: bool
) -> Iterator[dict[str, nn.Parameter]]:
    """Of some 64 MB, one at least."""
    bucket: dict[str, nn.Parameter] = {}
    size = 0
    for name, parameter in named:
        if trainable_only and not parameter.requires_grad:
            continue
        if size >= BUCKET_BYTES:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = parameter
        size += parameter.numel() * parameter.element_size()
    yield bucket


def weight_parts(buckets: Iterable[Mapping[str, nn.Parameter]]) -> Iterator[dict[str, WeightPart]]:
    """Of parameters that are divided by rows, those of this rank."""
    for bucket in buckets:
        yield {
            shard.name: WeightPart(shard.shape, shard.offsets[0] * prod(shard.shape[1:]), shard.data)
            if shard.shape
            else WeightPart((), 0, shard.data)
            for shard in targets(bucket)
        }
