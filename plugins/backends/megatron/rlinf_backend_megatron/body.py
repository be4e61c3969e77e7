"""What a trainer builds for one number of ranks: networks, the reduction of gradients, the optimizer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

from rlinf_backend_megatron.adapters import Switch, attach
from rlinf_backend_megatron.config import MegatronConfig
from rlinf_backend_megatron.exchange import Exchange
from rlinf_backend_megatron.ground import Ground
from rlinf_backend_megatron.network import Network, build_network
from rlinf_backend_megatron.optimizer import Optimizer
from rlinf_backend_megatron.policy import Judge
from rlinf_backend_megatron.reference import Reference
from rlinf_backend_megatron.world import World
from rlinf_core.api import OptimizerConfig


@dataclass
class Body:
    """This rank's stage and shards, wrapped for the reduction of gradients over data-parallel ranks."""

    world: World
    network: Network
    exchange: Exchange
    reference: Reference
    wrapped: DistributedDataParallel
    optimizer: Optimizer
    judge: Judge


def build_body(
    ground: Ground, world: World, optimizer: OptimizerConfig, total_steps: int, *, filled: bool
) -> Body:
    """Every rank takes part. With the weights of the ground, or before anything is `filled` in."""
    config = ground.config.on(world.size)
    network, exchange, switch = _built(ground, config, world, filled=filled)
    copied = ground.keep_reference and not ground.source.lora.rank
    copy = _built(ground, config, world, filled=filled)[0].requires_grad_(False) if copied else None
    wrapped = _wrapped(network, config)
    return Body(
        world,
        network,
        exchange,
        Reference(network, copy, switch),
        wrapped,
        Optimizer(optimizer, total_steps, wrapped, config),
        _judge(ground, config, world),
    )


def _built(
    ground: Ground, config: MegatronConfig, world: World, *, filled: bool
) -> tuple[Network, Exchange, Switch | None]:
    """A network, and what else is trained."""
    source, model = ground.source, ground.architecture
    lora = source.lora
    network, switch = build_network(model, config, adapted=lora.rank > 0), None
    if lora.rank:
        scale, ranks = lora.alpha / lora.rank, config.tensor_parallel
        switch = attach(network, model, source.adapted, lora.rank, scale, ranks)
        network.to(network.config.params_dtype)
    if source.head is not None and world.is_last_stage:
        network.value_head = deepcopy(source.head).float()
    exchange = Exchange(network, model, world, source.extra_pieces(model.layers))
    if filled:
        exchange.fill(source.state)
    network.to(world.device)
    return network, exchange, switch


def _judge(ground: Ground, config: MegatronConfig, world: World) -> Judge:
    multiple = config.context_parallel * 2 if config.context_parallel > 1 else 1
    multiple *= config.tensor_parallel if config.sequence_parallel else 1
    return Judge(
        world,
        ground.architecture.vocabulary,
        ground.sampling,
        ground.model.processor().eos_ids,
        multiple=multiple,
        packs=ground.model.padding_free and config.context_parallel == 1,
    )


def _wrapped(network: Network, config: MegatronConfig) -> DistributedDataParallel:
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=config.distributed_optimizer,
    )
    return DistributedDataParallel(network.config, settings, network)
