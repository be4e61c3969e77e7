"""Workers whose weights have the shapes of Qwen2-0.5B, for the benchmark of weight updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_core.api import WeightBucket, WeightPart
from rlinf_core.comm.places import copy_into
from rlinf_core.roles.publishing import Publisher
from rlinf_core.roles.weights import Receiver
from rlinf_core.worker import WorkerContext

BUCKET_BYTES = 64 << 20
LAYERS, HIDDEN, MIDDLE, VOCABULARY, HEADS_KV = 24, 896, 4864, 151936, 128


def shapes() -> dict[str, tuple[int, ...]]:
    """Of every parameter of Qwen2-0.5B, whose head is its embedding."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        for name, width in (("q", HIDDEN), ("k", HEADS_KV), ("v", HEADS_KV)):
            found[f"{layer}.self_attn.{name}_proj.weight"] = (width, HIDDEN)
            found[f"{layer}.self_attn.{name}_proj.bias"] = (width,)
        found[f"{layer}.self_attn.o_proj.weight"] = (HIDDEN, HIDDEN)
        found[f"{layer}.mlp.gate_proj.weight"] = (MIDDLE, HIDDEN)
        found[f"{layer}.mlp.up_proj.weight"] = (MIDDLE, HIDDEN)
        found[f"{layer}.mlp.down_proj.weight"] = (HIDDEN, MIDDLE)
        found[f"{layer}.input_layernorm.weight"] = (HIDDEN,)
        found[f"{layer}.post_attention_layernorm.weight"] = (HIDDEN,)
    found["model.norm.weight"] = (HIDDEN,)
    return found


def model() -> dict[str, Tensor]:
    """Parameters as views of one touched piece of memory, as the trainer of `fsdp` has them."""
    sizes = shapes()
    total = sum(int(np.prod(shape)) for shape in sizes.values())
    flat = torch.empty(total, dtype=torch.bfloat16)
    pattern = torch.randn(1 << 20).to(torch.bfloat16)
    for begin in range(0, total, len(pattern)):
        flat[begin : begin + len(pattern)] = pattern[: total - begin]
    found: dict[str, Tensor] = {}
    begin = 0
    for name, shape in sizes.items():
        count = int(np.prod(shape))
        found[name] = nn.Parameter(flat[begin : begin + count].view(shape), requires_grad=False)
        begin += count
    return found


class Trained:
    """As much of a trainer as a sync sees."""

    def __init__(self) -> None:
        self.version = 0
        self.parameters = model()

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """In buckets, as trainers do."""
        bucket, size = WeightBucket(self.version), 0
        for name, tensor in self.parameters.items():
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = WeightBucket(self.version), 0
            bucket.tensors[name] = tensor
            size += tensor.nbytes
        bucket.last = True
        yield bucket


class Actor(Publisher):
    """The sender."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.trainer: Any = Trained()

    def train(self, share: float) -> int:
        """Change a share of every parameter's elements in place; returns a digest."""
        self.trainer.version += 1
        step = max(1, round(1 / share))
        for tensor in self.trainer.parameters.values():
            tensor.view(-1)[self.trainer.version % step :: step] += 1.0
        return digest(self.trainer.parameters)


class Divided(Trained):
    """Has one half of every parameter; the other rank has the other."""

    def __init__(self, rank: int, master: str, *, gathers: bool) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.rank, self.gathers = rank, gathers
        self.halves = {name: tensor.view(-1).chunk(2)[rank] for name, tensor in self.parameters.items()}
        torch.distributed.init_process_group("gloo", f"tcp://{master}", rank=rank, world_size=2)

    def parts(self, *, trainable_only: bool = False) -> Iterator[dict[str, WeightPart]] | None:
        """Where nothing is gathered."""
        return None if self.gathers else self._parts()

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """As FSDP2 gathers a parameter."""
        for bucket in super().weights():
            for name, tensor in bucket.tensors.items():
                whole = torch.empty(tensor.numel(), dtype=tensor.dtype)
                torch.distributed.all_gather_single(whole, self.halves[name])
                bucket.tensors[name] = whole.view(tensor.shape)
            yield bucket

    def _parts(self) -> Iterator[dict[str, WeightPart]]:
        for bucket in super().weights():
            yield {
                name: WeightPart(tuple(tensor.shape), self.rank * (tensor.numel() // 2), self.halves[name])
                for name, tensor in bucket.tensors.items()
            }


class DividedActor(Actor):
    """One of two ranks."""

    def __init__(self, context: WorkerContext, *, gathers: bool) -> None:
        Publisher.__init__(self, context)
        self.trainer: Any = Divided(context.rank, context.master, gathers=gathers)

    def close(self) -> None:
        """Leave the process group."""
        super().close()
        torch.distributed.destroy_process_group()


class Rollout(Receiver):
    """The receiver: copies into parameters of its own, or takes the memory that it is shown."""

    def __init__(self, context: WorkerContext, *, adopts: bool) -> None:
        super().__init__(context)
        self.adopts = adopts
        self.parameters = {} if adopts else model()

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one version."""
        version = -1
        for bucket in buckets:
            for name, tensor in bucket.tensors.items():
                if self.adopts:
                    self.parameters[name] = tensor
                else:
                    copy_into(self.parameters[name], tensor)
            version = bucket.version
        return version

    def digest(self) -> int:
        """Of what is installed."""
        return digest(self.parameters)


def digest(tensors: dict[str, Tensor]) -> int:
    """Which differs when any element does, or two are exchanged within a tensor's halves."""
    total = 0
    for number, name in enumerate(sorted(tensors)):
        bits = tensors[name].detach().view(-1).view(torch.int16)
        half = len(bits) // 2
        total += (number + 1) * (int(bits[:half].sum()) + 3 * int(bits[half:].sum()))
    return total
