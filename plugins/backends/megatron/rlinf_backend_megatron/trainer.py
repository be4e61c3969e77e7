"""One rank of a policy that Megatron-Core trains. Axes: B rows, S positions, T response positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlinf_backend_megatron import checkpoint
from rlinf_backend_megatron.body import Body, build_body
from rlinf_backend_megatron.ground import Ground
from rlinf_backend_megatron.holdings import HeldBoxes, holdings
from rlinf_backend_megatron.optimizer import Optimizer
from rlinf_backend_megatron.resize import Facts, Rebuild
from rlinf_backend_megatron.schedule import MicroBatch, run
from rlinf_backend_megatron.spread import Spread, layer_order
from rlinf_backend_megatron.world import join_world
from rlinf_core.adapters import export_adapted
from rlinf_core.api import (
    POLICY,
    DataShare,
    Held,
    LossFunction,
    MetricSums,
    OptimizerConfig,
    PolicyOutputs,
    StepStats,
    TokenRows,
    TrainBatch,
    Trainer,
    TrainerContext,
    Want,
    WeightBucket,
)
from rlinf_core.errors import CheckpointError
from rlinf_core.shards import ShardSnapshot, Stage
from rlinf_core.shelf import Shelf, stored_bytes

BUCKET_BYTES = 64 << 20


class MegatronTrainer(Trainer):
    """This rank's stage and shards, wrapped for the reduction of gradients over data-parallel ranks."""

    share: DataShare

    def __init__(self, ground: Ground, body: Body) -> None:
        self.ground = ground.hollow()
        self.model, self.lora, self.seed = ground.model, ground.source.lora, ground.seed
        self._sent, self._forms = ground.source.sent, ground.forms()
        self._stage = Stage()
        self.become(body)

    @classmethod
    def build(cls, ground: Ground, optimizer: OptimizerConfig, context: TrainerContext) -> MegatronTrainer:
        """Meet the other ranks and build. Raises `ConfigError`."""
        world = join_world(context, ground.layout(context.world_size))
        return cls(ground, build_body(ground, world, optimizer, context.total_steps, filled=True))

    def become(self, body: Body) -> None:
        """Be one of that many ranks."""
        self.world, self.network, self.exchange = body.world, body.network, body.exchange
        self.reference, self.wrapped, self.optimizer = body.reference, body.wrapped, body.optimizer
        self._judge = body.judge
        self.share, self.padding_free = body.world.share, body.judge.packs
        self.host_is_elsewhere = body.world.device.type != "cpu"
        self._shelf = Shelf()
        self._pending = False  # gradients that no step has used

    @property
    def body(self) -> Body:
        """What `become` was given."""
        return Body(
            self.world,
            self.network,
            self.exchange,
            self.reference,
            self.wrapped,
            self.optimizer,
            self._judge,
        )

    def outputs(
        self, inputs: Mapping[str, Tensor], want: frozenset[Want], *, reference: bool = False
    ) -> PolicyOutputs:
        """Outputs without gradient, the same on every rank of the model."""
        if reference:  # adapters are exchanged for it
            self._stage.settle()
        self.onload()
        rows = self._rows(inputs)
        reading = self._judge.reading(rows)
        all_3BT = torch.zeros(3, len(rows.ids_BS), rows.width, device=self.world.device)

        def finish(hidden_LBH: Tensor) -> Tensor:
            found = self._judge.outputs(network, hidden_LBH, rows, reading, want)
            for place, part_BT in enumerate((found.logprobs_BT, found.entropy_BT, found.values_BT)):
                if part_BT is not None:
                    all_3BT[place] = part_BT
            return hidden_LBH.new_zeros(())

        asked = self.reference.active() if reference else nullcontext(self.network)
        with torch.no_grad(), asked as network:
            run(network, iter([MicroBatch(reading, finish)]), 1, backward=False)
        logprobs_BT, entropy_BT, values_BT = self.world.from_stage(all_3BT, self.world.layout.pipeline - 1)
        return PolicyOutputs(logprobs_BT, entropy_BT, values_BT if "values" in want else None)

    def accumulate(self, batch: TrainBatch, loss: LossFunction, want: frozenset[Want] = POLICY) -> MetricSums:
        """Add the gradient of one micro-batch's summed loss. Metrics are those of the last stage."""
        return self.accumulate_all([batch], loss, want)

    def accumulate_all(
        self, batches: Iterable[TrainBatch], loss: LossFunction, want: frozenset[Want] = POLICY
    ) -> MetricSums:
        """Of several; as many of them are under way as the pipeline has stages."""
        self.onload()
        self._pending = True
        alone = self.world.layout.expert == 1  # else other ranks wait for this one's tokens
        held = [batch for batch in batches if not alone or batch.decisions]
        sums: MetricSums = {}
        if held:
            made = (self._micro_batch(batch, loss, want, sums) for batch in held)
            run(self.wrapped, made, len(held), backward=True)
        return sums

    def _micro_batch(
        self, batch: TrainBatch, loss: LossFunction, want: frozenset[Want], sums: MetricSums
    ) -> MicroBatch:
        batch = batch.to(self.world.device)
        rows = self.model.token_rows(batch.inputs)
        reading = self._judge.reading(rows)

        def finish(hidden_LBH: Tensor) -> Tensor:
            if not batch.decisions:
                return hidden_LBH.sum() * 0.0
            outputs = self._judge.outputs(self.network, hidden_LBH, rows, reading, want)
            terms = loss(outputs, batch)
            for name, (total, count) in terms.metrics.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + float(total), before[1] + float(count))
            return terms.total

        return MicroBatch(reading, finish)

    def step(self, denominator: float) -> StepStats:
        """One optimizer step with the gradient of the mean."""
        self._stage.settle()
        self.onload()
        stats = self.optimizer.step(denominator)
        self._pending = False
        self.version += 1
        return stats

    def all_sum(self, values: list[float]) -> list[float]:
        """Element-wise sum over data-parallel ranks, which is one of each share."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.world.device)
        summed: list[float] = self.world.sum_over_data_(tensor).tolist()
        return summed

    def weights(self, *, trainable_only: bool = False) -> Iterator[WeightBucket]:
        """Whole tensors under the module's names in buckets of some 64 MB; they are copies, since Megatron
        holds several of them as one."""
        self.onload()
        bucket, size = WeightBucket(self.version), 0
        for name, tensor in self._stream(extra_alone=trainable_only and self.lora.rank > 0):
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = WeightBucket(self.version), 0
            bucket.tensors[name] = tensor
            size += tensor.numel() * tensor.element_size()
        bucket.last = True
        yield bucket

    def save(self, path: Path) -> None:
        """What is trained: weights, optimizer, counters, a marked reference and each rank's random state.
        Raises `CheckpointError`."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.snapshot(apart=False).write(path)
        except OSError as err:
            raise CheckpointError(f"backend megatron: cannot write {path}: {err}") from err
        self.world.barrier()

    def snapshot(self, *, apart: bool) -> ShardSnapshot:
        """The same, to be written later. The copy is made by a thread, and whatever changes the state waits
        for it."""
        self.onload()
        shards = checkpoint.written(self)
        return ShardSnapshot(shards, self.world.rank, self.world.size, self._stage if apart else None)

    def load(self, path: Path) -> None:
        """Restore what `save` wrote, also with other parallel sizes. Raises `CheckpointError`."""
        self._stage.settle()
        self.onload()
        checkpoint.load(self, path)

    def export(self, path: Path) -> None:
        """Rank 0 writes the model's own format, tensor by tensor as they come; adapters merged, and alone to
        `path/adapter`."""
        self.onload()
        state = self._stream()
        if self.world.rank != 0:
            for _ in state:
                continue
        elif self.lora.rank:
            export_adapted(self.model, self.lora, self.seed, dict(state), path)
        else:
            self.model.export(state, path)
        self.world.barrier()

    def mark_reference(self) -> None:
        """The current policy becomes the reference; it is saved with the checkpoint."""
        self._stage.settle()
        self.onload()
        self.reference.mark()

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A fresh optimizer and schedule; gradients not yet applied are forgotten."""
        self._stage.settle()
        self.onload()
        self.optimizer.clear()
        self._pending = False
        self.optimizer = Optimizer(optimizer, total_steps, self.wrapped, self.ground.config)

    def held(self) -> Held:
        """Parameters, optimizer state and what the reference keeps."""
        return HeldBoxes(holdings(self.spread(), self.body))

    def facts(self) -> dict[str, Any]:  # Any: of `Facts`
        """Counters, what the optimizer was told, and the order of parameters."""
        optimizer = self.optimizer
        return {
            "version": self.version,
            "steps_taken": optimizer.steps_taken,
            "skipped_steps": optimizer.skipped_steps,
            "optimizer": optimizer.config,
            "total_steps": optimizer.total_steps,
            "marked": self.reference.marked,
            "order": self._order(),
        }

    def resize(self, context: TrainerContext) -> Rebuild:
        """Raises `ConfigError` where the model does not fit on so many ranks."""
        return Rebuild(self.ground, context, Facts(**self.facts()), self)

    def spread(self) -> Spread:
        """How the model lies on ranks."""
        return self.ground.spread(self._order())

    def leave(self) -> None:
        """Be alone with what there is, until `become`."""
        self._stage.settle()
        self.onload()
        self.world.leave()

    def memory_bytes(self) -> float:
        """Of this rank's shards."""
        return stored_bytes([*self._weights(), *self._gradients(), *self.optimizer.tensors()])

    def onload(self) -> None:
        """Bring back what `offload` took; other methods do so too."""
        self._shelf.fetch()

    def offload(self) -> None:
        """Move what the settings name to host memory. On the CPU, where there is nowhere to go, gradients
        that hold nothing are freed."""
        self._stage.settle()
        leaving = self.ground.config.offload
        gradients = self._gradients() if "gradients" in leaving else []
        moved: list[Tensor] = []
        kept = [] if "weights" in leaving else self._weights()  # main parameters may be views of these
        if self.host_is_elsewhere:
            moved += self._weights() if "weights" in leaving else []
            moved += self.optimizer.tensors() if "optimizer" in leaving else []
            moved += gradients if self._pending else []
        self._shelf.put(moved, [] if self._pending else gradients, kept)

    def close(self) -> None:
        """Leave the process groups."""
        self._stage.settle()
        self.world.close()

    def _order(self) -> tuple[str, ...]:
        return layer_order([name for name, _ in self.network.named_parameters()])

    def _weights(self) -> list[Tensor]:
        return [*self.network.parameters(), *self.network.buffers(), *self.reference.tensors()]

    def _gradients(self) -> list[Tensor]:
        """Views of Megatron's buffers, which a rank may have large ones of."""
        return [held.main_grad for held in self.network.parameters() if held.requires_grad]

    def _stream(self, *, extra_alone: bool = False) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.exchange.stream(self._forms, extra_alone=extra_alone):
            yield self._sent[name], tensor

    def _rows(self, inputs: Mapping[str, Tensor]) -> TokenRows:
        moved = {name: value.to(self.world.device) for name, value in inputs.items()}
        return self.model.token_rows(moved)
