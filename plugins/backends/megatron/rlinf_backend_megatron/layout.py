"""Whether parallel sizes, model and ranks fit together; checked before any process group is opened."""

from __future__ import annotations

from dataclasses import dataclass

from rlinf_backend_megatron.architecture import Architecture
from rlinf_backend_megatron.config import MegatronConfig
from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class Layout:
    """The five sizes, data among them."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    data: int


def checked_layout(
    config: MegatronConfig, model: Architecture, ranks: int, *, transformer_engine: bool
) -> Layout:
    """The layout on so many ranks, which `config.on` has seen. Raises `ConfigError` with the first thing that
    does not fit."""
    if ranks % config.model_ranks:
        raise ConfigError(
            f"backend megatron: one model takes tensor_parallel={config.tensor_parallel} x pipeline_parallel="
            f"{config.pipeline_parallel} x context_parallel={config.context_parallel} = {config.model_ranks} "
            f"ranks, which do not divide the actor's {ranks}; change backend.*_parallel or the actor's ranks "
            "(placement, cluster.devices)"
        )
    data = ranks // config.model_ranks
    _check_shape(config, model)
    _check_experts(config, model, data * config.context_parallel)
    if not transformer_engine:
        _check_without_engine(config)
    return Layout(
        config.tensor_parallel,
        config.pipeline_parallel,
        config.context_parallel,
        config.expert_parallel,
        data,
    )


def _check_shape(config: MegatronConfig, model: Architecture) -> None:
    parts = [
        ("pipeline_parallel", model.layers, "layers"),
        ("tensor_parallel", model.heads, "attention heads"),
        ("tensor_parallel", model.groups, "key and value heads"),
        ("tensor_parallel", model.feed_forward, "feed-forward units"),
    ]
    for name, number, what in parts:
        size = getattr(config, name)
        if number % size:
            fitting = [n for n in range(1, number + 1) if number % n == 0]
            raise ConfigError(
                f"backend.{name} (megatron): {size} does not divide the model's {number} {what}; "
                f"possible for these: {', '.join(map(str, fitting[:12]))}"
            )


def _check_experts(config: MegatronConfig, model: Architecture, data_ranks: int) -> None:
    size = config.expert_parallel
    if size == 1 and model.experts is None:
        return
    if model.experts is None:
        raise ConfigError(
            f"backend.expert_parallel (megatron): {size}, but {model.model_type} has no experts; "
            "leave it at 1"
        )
    if model.experts.count % size:
        raise ConfigError(
            f"backend.expert_parallel (megatron): {size} does not divide the model's "
            f"{model.experts.count} experts"
        )
    if data_ranks % size:
        raise ConfigError(
            f"backend.expert_parallel (megatron): experts are shared by data-parallel ranks, and {size} does "
            f"not divide the {data_ranks} of these that tensor_parallel and pipeline_parallel leave"
        )
    if config.tensor_parallel > 1 and not config.sequence_parallel:
        raise ConfigError(
            "backend.tensor_parallel (megatron): Megatron trains experts with tensor parallelism only where "
            "sequence_parallel is on too; set backend.sequence_parallel=true, or backend.tensor_parallel=1"
        )


def _check_without_engine(config: MegatronConfig) -> None:
    if config.sequence_parallel:
        raise ConfigError(
            "backend.sequence_parallel (megatron) needs TransformerEngine, which is not installed; pip "
            "install 'transformer-engine[pytorch]' on a machine with CUDA, or leave it out"
        )
