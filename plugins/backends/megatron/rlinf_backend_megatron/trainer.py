"""One rank of a policy that Megatron-Core trains. Axes: B rows, S positions, T response positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from torch import Tensor

from rlinf_backend_megatron import checkpoint
from rlinf_backend_megatron.architecture import Architecture
from rlinf_backend_megatron.config import MegatronConfig
from rlinf_backend_megatron.exchange import Exchange
from rlinf_backend_megatron.network import Network, build_network
from rlinf_backend_megatron.optimizer import Optimizer
from rlinf_backend_megatron.policy import Judge
from rlinf_backend_megatron.schedule import MicroBatch, run
from rlinf_backend_megatron.world import World
from rlinf_core.api import (
    POLICY,
    DataShare,
    LossFunction,
    MetricSums,
    Model,
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
from rlinf_core.errors import ConfigError
from rlinf_core.shelf import Shelf, stored_bytes
from rlinf_core.types import Sampling

BUCKET_BYTES = 64 << 20


class MegatronTrainer(Trainer):
    """This rank's stage and shards, wrapped for the reduction of gradients over data-parallel ranks."""

    share: DataShare

    def __init__(
        self,
        config: MegatronConfig,
        model: Model,
        architecture: Architecture,
        state: Mapping[str, Tensor],
        optimizer: OptimizerConfig,
        context: TrainerContext,
        world: World,
        *,
        sampling: Sampling | None = None,
        keep_reference: bool = False,
    ) -> None:
        self.config, self.model, self.architecture, self.world = config, model, architecture, world
        self.share = world.share
        self._shapes = {name: tensor.shape for name, tensor in state.items()}
        self.network = self._network(state)
        self.reference = self._network(state) if keep_reference else None
        if self.reference is not None:
            self.reference.requires_grad_(False)
        self.marked = False  # whether the reference is another one than the initial policy
        self.wrapped = _wrapped(self.network, config)
        self.exchange = Exchange(self.network, architecture, world)
        self.optimizer = Optimizer(optimizer, context.total_steps, self.wrapped, config)
        ends = model.processor().eos_ids
        multiple = config.context_parallel * 2 if config.context_parallel > 1 else 1
        multiple *= config.tensor_parallel if config.sequence_parallel else 1
        self.padding_free = model.padding_free and config.context_parallel == 1
        self._judge = Judge(
            world,
            architecture.vocabulary,
            sampling or Sampling(),
            ends,
            multiple=multiple,
            packs=self.padding_free,
        )
        self._shelf = Shelf()
        self.host_is_elsewhere = world.device.type != "cpu"
        self._pending = False  # gradients that no step has used

    def outputs(
        self, inputs: Mapping[str, Tensor], want: frozenset[Want], *, reference: bool = False
    ) -> PolicyOutputs:
        """Outputs without gradient, the same on every rank of the model."""
        self._check(want)
        self.onload()
        network = self.reference_network() if reference else self.network
        rows = self._rows(inputs)
        shape = len(rows.ids_BS), rows.width
        both_2BT = torch.zeros(2, *shape, device=self.world.device)

        reading = self._judge.reading(rows)

        def finish(hidden_LBH: Tensor) -> Tensor:
            found = self._judge.outputs(network, hidden_LBH, rows, reading)
            both_2BT[0] = found.logprobs_BT
            if found.entropy_BT is not None:
                both_2BT[1] = found.entropy_BT
            return hidden_LBH.new_zeros(())

        with torch.no_grad():
            run(network, iter([MicroBatch(reading, finish)]), 1, backward=False)
        logprobs_BT, entropy_BT = self.world.from_stage(both_2BT, self.world.layout.pipeline - 1)
        return PolicyOutputs(logprobs_BT, entropy_BT)

    def accumulate(self, batch: TrainBatch, loss: LossFunction, want: frozenset[Want] = POLICY) -> MetricSums:
        """Add the gradient of one micro-batch's summed loss. Metrics are those of the last stage."""
        return self.accumulate_all([batch], loss, want)

    def accumulate_all(
        self, batches: Iterable[TrainBatch], loss: LossFunction, want: frozenset[Want] = POLICY
    ) -> MetricSums:
        """Of several; as many of them are under way as the pipeline has stages."""
        self._check(want)
        self.onload()
        self._pending = True
        alone = self.world.layout.expert == 1  # else other ranks wait for this one's tokens
        held = [batch for batch in batches if not alone or bool(batch.mask_BT.any())]
        sums: MetricSums = {}
        if held:
            made = (self._micro_batch(batch, loss, sums) for batch in held)
            run(self.wrapped, made, len(held), backward=True)
        return sums

    def _micro_batch(self, batch: TrainBatch, loss: LossFunction, sums: MetricSums) -> MicroBatch:
        batch = batch.to(self.world.device)
        rows = self.model.token_rows(batch.inputs)
        reading = self._judge.reading(rows)

        def finish(hidden_LBH: Tensor) -> Tensor:
            outputs = self._judge.outputs(self.network, hidden_LBH, rows, reading)
            if not bool(batch.mask_BT.any()):
                return outputs.logprobs_BT.sum() * 0.0
            terms = loss(outputs, batch)
            for name, (total, count) in terms.metrics.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + float(total), before[1] + float(count))
            return terms.total

        return MicroBatch(reading, finish)

    def step(self, denominator: float) -> StepStats:
        """One optimizer step with the gradient of the mean."""
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
        """Whole tensors under Hugging Face names in buckets of some 64 MB; they are copies, since Megatron
        holds several of them as one."""
        self.onload()
        bucket, size = WeightBucket(self.version), 0
        for name, tensor in self._stream():
            if size >= BUCKET_BYTES:
                yield bucket
                bucket, size = WeightBucket(self.version), 0
            bucket.tensors[name] = tensor
            size += tensor.numel() * tensor.element_size()
        bucket.last = True
        yield bucket

    def save(self, path: Path) -> None:
        """Weights, optimizer, counters and a marked reference, each rank its part."""
        self.onload()
        checkpoint.save(self, path)

    def load(self, path: Path) -> None:
        """Restore what `save` wrote, also with other parallel sizes. Raises `CheckpointError`."""
        self.onload()
        checkpoint.load(self, path)

    def export(self, path: Path) -> None:
        """Rank 0 writes the model's own format, tensor by tensor as they come."""
        self.onload()
        state = self._stream()
        if self.world.rank == 0:
            self.model.export(state, path)
        else:
            for _ in state:
                continue
        self.world.barrier()

    def mark_reference(self) -> None:
        """The current policy becomes the reference; it is saved with the checkpoint."""
        self.onload()
        self.reference_network().load_state_dict(self.network.state_dict())
        self.marked = True

    def reset_optimizer(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A fresh optimizer and schedule; gradients not yet applied are forgotten."""
        self.onload()
        self.optimizer.clear()
        self._pending = False
        self.optimizer = Optimizer(optimizer, total_steps, self.wrapped, self.config)

    def memory_bytes(self) -> float:
        """Of this rank's shards."""
        return stored_bytes([*self._weights(), *self._gradients(), *self.optimizer.tensors()])

    def onload(self) -> None:
        """Bring back what `offload` took; other methods do so too."""
        self._shelf.fetch()

    def offload(self) -> None:
        """Move what the settings name to host memory. On the CPU, where there is nowhere to go, gradients
        that hold nothing are freed."""
        leaving = self.config.offload
        gradients = self._gradients() if "gradients" in leaving else []
        moved: list[Tensor] = []
        kept = [] if "weights" in leaving else self._weights()  # main parameters may be views of these
        if self.host_is_elsewhere:
            moved += self._weights() if "weights" in leaving else []
            moved += self.optimizer.tensors() if "optimizer" in leaving else []
            moved += gradients if self._pending else []
        self._shelf.put(moved, [] if self._pending else gradients, kept)

    def reference_network(self) -> Network:
        """What is asked with `reference=True`. Raises `ConfigError` if none is kept."""
        if self.reference is None:
            raise ConfigError("backend megatron: no reference is kept; build it with keep_reference=True")
        return self.reference

    def close(self) -> None:
        """Leave the process groups."""
        self.world.close()

    def _network(self, state: Mapping[str, Tensor]) -> Network:
        network = build_network(self.architecture, self.config)
        Exchange(network, self.architecture, self.world).fill(state)
        network.to(self.world.device)
        return network

    def _weights(self) -> list[Tensor]:
        networks = [self.network] if self.reference is None else [self.network, self.reference]
        return [held for network in networks for held in (*network.parameters(), *network.buffers())]

    def _gradients(self) -> list[Tensor]:
        """Views of Megatron's buffers, which a rank may have large ones of."""
        return [parameter.main_grad for parameter in self.network.parameters()]

    def _stream(self) -> Iterator[tuple[str, Tensor]]:
        return self.exchange.stream(self._shapes, next(self.network.parameters()).dtype)

    def _check(self, want: frozenset[Want]) -> None:
        if "values" in want:
            raise ConfigError(
                "backend megatron: values were asked for, but it trains no value head; choose an algorithm "
                "without a critic, or --backend fsdp"
            )

    def _rows(self, inputs: Mapping[str, Tensor]) -> TokenRows:
        moved = {name: value.to(self.world.device) for name, value in inputs.items()}
        return self.model.token_rows(moved)


def _wrapped(network: Network, config: MegatronConfig) -> DistributedDataParallel:
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=config.distributed_optimizer,
    )
    return DistributedDataParallel(network.config, settings, network)
