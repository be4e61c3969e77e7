"""One rank of a policy that trains with PyTorch. Axes: B rows, T decision steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlinf_backend_fsdp.checkpoint import parts, targets
from rlinf_backend_fsdp.export import export_policy, whole
from rlinf_backend_fsdp.ground import Body, Ground, build_ground
from rlinf_backend_fsdp.leaves import Leaves
from rlinf_backend_fsdp.optimizer import Optimizer
from rlinf_backend_fsdp.policy import adapter_dropouts, shard, wants_sharding
from rlinf_backend_fsdp.reference import Reference
from rlinf_backend_fsdp.resize import Facts, Rebuild, Stay, held
from rlinf_backend_fsdp.sending import in_buckets, weight_parts
from rlinf_backend_fsdp.world import join_world
from rlinf_core.api import (
    POLICY,
    Block,
    Held,
    LoRAConfig,
    LossFunction,
    MetricSums,
    Model,
    OptimizerConfig,
    PolicyOutputs,
    Resize,
    StepStats,
    TrainBatch,
    Trainer,
    TrainerContext,
    Want,
    WeightBucket,
    WeightPart,
)
from rlinf_core.shards import ShardSnapshot, Stage, keys, read
from rlinf_core.shelf import Shelf, borrowed, stored_bytes
from rlinf_core.types import Sampling

if TYPE_CHECKING:
    from rlinf_backend_fsdp.config import FSDPConfig


class FSDPTrainer(Trainer):
    """Parameters are replicated with one gradient reduction a step, or sharded with FSDP2."""

    def __init__(self, ground: Ground, body: Body) -> None:
        self.ground = ground
        self.model, self.lora, self.seed = ground.model, ground.lora, ground.seed
        self.padding_free = self.shares_prompts = ground.model.padding_free
        self.leaving = ground.config.offload
        self._stage = Stage()
        self.become(body)

    @classmethod
    def build(
        cls,
        config: FSDPConfig,
        model: Model,
        optimizer: OptimizerConfig,
        lora: LoRAConfig,
        context: TrainerContext,
        *,
        sampling: Sampling | None = None,
        keep_reference: bool = False,
    ) -> FSDPTrainer:
        """Meet the other ranks and build. Raises `ConfigError`."""
        ground, policy, frozen = build_ground(
            config, model, lora, context.seed, sampling, keep_reference=keep_reference
        )
        world = join_world(context)
        sharded = wants_sharding(policy, config, world.size)
        for module in (policy, frozen):
            if module is not None:
                module.to(world.device)
                if sharded:
                    shard(module, model, config, world)
        leaves = Leaves(policy.named(), world)
        reference = Reference(policy, frozen, adapters=lora.rank > 0)
        made = Optimizer(optimizer, context.total_steps, leaves)
        return cls(ground, Body(world, policy, reference, sharded, leaves, made))

    def become(self, body: Body) -> None:
        """Be one of that many ranks."""
        self.world, self.policy, self.reference = body.world, body.policy, body.reference
        self.sharded, self._leaves, self.optimizer = body.sharded, body.leaves, body.optimizer
        self._blocks: Sequence[Block] = ()  # of what is held, once they were asked for
        self.any_order = not body.sharded
        self._dropouts = adapter_dropouts(self.policy) if self.lora.dropout else []
        self.host_is_elsewhere = self.world.device.type != "cpu"
        self._shelf = Shelf()
        self._pending = False  # gradients that no step has used

    @property
    def body(self) -> Body:
        """What `become` was given."""
        return Body(self.world, self.policy, self.reference, self.sharded, self._leaves, self.optimizer)

    def outputs(
        self, inputs: Mapping[str, Tensor], want: frozenset[Want], *, reference: bool = False
    ) -> PolicyOutputs:
        """Outputs without gradient. Raises `ConfigError` for a reference that was not kept."""
        if reference:  # adapters are exchanged for it
            self._stage.settle()
        self.onload()
        asked = self.reference.active(self._leaves.parameters()) if reference else nullcontext(self.policy)
        with torch.no_grad(), asked as policy:
            return policy.policy(self._moved(inputs), want)

    def mark_reference(self) -> None:
        """The current policy becomes the reference; it is saved with the checkpoint."""
        self._stage.settle()
        self.onload()
        self.reference.mark(self._leaves.parameters())

    def accumulate(self, batch: TrainBatch, loss: LossFunction, want: frozenset[Want] = POLICY) -> MetricSums:
        """Add the gradient of one micro-batch's summed loss."""
        self.onload()
        self._pending = True
        empty = not batch.decisions
        if empty and not self.sharded:
            return {}
        batch = batch.to(self.world.device)
        for part in self._dropouts:
            part.train()
        outputs = self.policy.policy(batch.inputs, want)
        if empty:
            _nothing(outputs).backward()  # type: ignore[no-untyped-call]
            metrics: MetricSums = {}
        else:
            terms = loss(outputs, batch)
            terms.total.backward()  # type: ignore[no-untyped-call]
            metrics = {name: (float(total), float(count)) for name, (total, count) in terms.metrics.items()}
        for part in self._dropouts:
            part.eval()
        return metrics

    def close_part(self) -> None:
        """Parts are added up as whole numbers. Raises `ConfigError` for sharded parameters, whose ranks meet
        in every micro-batch."""
        if self.sharded:
            super().close_part()
        self.onload()
        self._leaves.close_part()
        self._pending = True

    def step(self, denominator: float) -> StepStats:
        """One optimizer step with the gradient of the mean."""
        self._stage.settle()
        self.onload()
        stats = self.optimizer.step(denominator)
        self._pending = False
        self.version += 1
        return stats

    def all_sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over ranks."""
        if self.world.size == 1:
            return list(values)
        summed: list[float] = self.world.sum_(
            torch.tensor(values, dtype=torch.float64, device=self.world.device)
        ).tolist()
        return summed

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """Parameters in buckets of some 64 MB: themselves where they are whole, else gathered."""
        self.onload()
        buckets = list(in_buckets(self.policy.named(), trainable_only=trainable_only))
        for number, bucket in enumerate(buckets, 1):
            tensors = {name: whole(parameter) for name, parameter in bucket.items()}
            yield WeightBucket(self.version, tensors, last=number == len(buckets))

    def parts(self, *, trainable_only: bool = False) -> Iterator[dict[str, WeightPart]] | None:
        """This rank's rows, in the same buckets; None where parameters are replicated."""
        self.onload()
        if not self.sharded:
            return None
        return weight_parts(in_buckets(self.policy.named(), trainable_only=trainable_only))

    def save(self, path: Path) -> None:
        """Trained parameters, optimizer, counters, a marked reference and this rank's random state. What
        is not trained, and a reference that was not marked, come from the model and the seed."""
        path.mkdir(parents=True, exist_ok=True)
        self.snapshot(apart=False).write(path)
        self.all_sum([0.0])  # complete when it returns, on every rank

    def snapshot(self, *, apart: bool) -> ShardSnapshot:
        """The same, to be written later. The copy is made by a thread, and whatever changes the state waits
        for it."""
        self.onload()
        numbers = (self.version, self.optimizer.steps_taken, self.optimizer.skipped_steps)
        state = {**self._state(), **self._marked(), "numbers": torch.tensor(numbers)}
        shards = parts(state, self._random(), self.world)
        stage = self._stage if apart else None
        return ShardSnapshot(shards, self.world.rank, self.world.size, stage)

    def load(self, path: Path) -> None:
        """Restore what `save` wrote. A rank that did not exist then keeps its random state,
        and the schedule ends where this trainer was built to end."""
        self._stage.settle()
        self.onload()
        state = {**self._state(), "numbers": torch.zeros(3, dtype=torch.int64)}
        stored = keys(path, "fsdp")
        random = {name: value for name, value in self._random().items() if name in stored}
        if any(name.startswith("reference.") for name in stored):
            self.mark_reference()
            state |= self._marked()
        read(targets({**state, **random}), path, "fsdp")
        version, *counters = state["numbers"].tolist()
        self.version = version
        self.optimizer.after_load(*counters)
        self.reference.install()
        for name, value in random.items():
            if name == f"random.{self.world.rank}":
                torch.set_rng_state(value)
            else:
                torch.cuda.set_rng_state(value, self.world.device)

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A fresh optimizer and schedule; gradients not yet applied are forgotten."""
        self._stage.settle()
        self.onload()
        self._leaves.clear()
        self._pending = False
        self.optimizer = Optimizer(optimizer, total_steps, self._leaves)

    def export(self, path: Path) -> None:
        """Rank 0 writes the model's own format, adapters merged; adapters alone go to `path/adapter`."""
        self.onload()
        export_policy(self, path)

    def held(self) -> Held:
        """Parameters, optimizer state and what the reference keeps."""
        found = held(self.body, self._blocks)
        self._blocks = tuple(found)
        return found

    def facts(self) -> dict[str, Any]:  # Any: of `Facts`
        """Counters and what the optimizer was told."""
        optimizer = self.optimizer
        return {
            "version": self.version,
            "steps_taken": optimizer.steps_taken,
            "skipped_steps": optimizer.skipped_steps,
            "optimizer": optimizer.config,
            "total_steps": optimizer.total_steps,
            "marked": bool(self.reference.marked),
        }

    def resize(self, context: TrainerContext) -> Resize:
        """Nothing moves where parameters are whole before and after."""
        if self.sharded or wants_sharding(self.policy, self.ground.config, context.world_size):
            return Rebuild(self.ground, context, Facts(**self.facts()), self)
        return Stay(self, context)

    def leave(self) -> None:
        """Be alone with what there is, until `become`."""
        self._stage.settle()
        self.onload()
        self.world.close()

    def memory_bytes(self) -> float:
        """Of this rank's shards."""
        weights = [*self.policy.parameters(), *self.policy.buffers(), *self.reference.tensors()]
        return stored_bytes([*weights, *self._leaves.gradients(), *self.optimizer.tensors()])

    def onload(self) -> None:
        """Bring back what `offload` took; other methods do so too."""
        self._shelf.fetch()

    def offload(self) -> None:
        """Move what the settings name to host memory. Weights that a rollout engine of this process uses
        too stay. On the CPU, where there is nowhere to go, gradients that hold nothing are freed."""
        self._stage.settle()
        moved: list[Tensor] = []
        gradients = self._leaves.gradients() if "gradients" in self.leaving else []
        if self.host_is_elsewhere:
            if "weights" in self.leaving:
                moved += [*self.policy.parameters(), *self.policy.buffers(), *self.reference.tensors()]
            if "optimizer" in self.leaving:
                moved += self.optimizer.tensors()
            if self._pending:
                moved += gradients
        self._shelf.put(moved, [] if self._pending else gradients, borrowed(self.policy.parameters()))

    def close(self) -> None:
        """Leave the process group."""
        self._stage.settle()
        self.world.close()

    def _random(self) -> dict[str, Tensor]:
        """The generators that this rank draws from."""
        states = {f"random.{self.world.rank}": torch.get_rng_state()}
        if self.world.device.type == "cuda":
            states[f"random_device.{self.world.rank}"] = torch.cuda.get_rng_state(self.world.device)
        return states

    def _state(self) -> dict[str, Tensor]:
        parameters = {f"model.{name}": tensor for name, tensor in self._leaves.parameters().items()}
        moments = {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return {**parameters, **moments}

    def _marked(self) -> dict[str, Tensor]:
        return {f"reference.{name}": tensor for name, tensor in self.reference.marked.items()}

    def _moved(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if self.world.device.type == "cpu":
            return inputs
        return {name: value.to(self.world.device) for name, value in inputs.items()}


def _nothing(outputs: PolicyOutputs) -> Tensor:
    """Zero, with the gradient graph of everything that was computed."""
    found = (outputs.logprobs_BT, outputs.entropy_BT, outputs.values_BT)
    return torch.stack(
        [tensor.masked_fill(tensor == tensor, 0.0).sum() for tensor in found if tensor is not None]
    ).sum()
