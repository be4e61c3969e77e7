"""Parts of tensors in safetensors files, one a rank, that any number of ranks reads."""

from __future__ import annotations

from rlinf_core.shards.files import Reader, Shard, keys, read
from rlinf_core.shards.snapshot import ShardSnapshot, Stage

__all__ = ["Reader", "Shard", "ShardSnapshot", "Stage", "keys", "read"]
