"""The Megatron network of an architecture: this rank's stage and shards, and what it computes.

Axes: B rows, S positions, H hidden size, P packed positions, D head dimension, N response positions.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    gather_from_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from rlinf_backend_megatron.architecture import Architecture
from rlinf_backend_megatron.config import MegatronConfig
from rlinf_backend_megatron.context import causal_mask
from rlinf_backend_megatron.packing import PackedRows, attend
from rlinf_backend_megatron.release import has_transformer_engine
from rlinf_core.errors import ConfigError


class Network(GPTModel):  # type: ignore[misc]  # Megatron is not typed
    """A stage that gives hidden states on the last stage too: the head works on some positions only."""

    value_head: nn.Module

    def forward(self, ids_BS: Tensor, packed: PackedRows | None = None) -> Tensor:
        """Hidden states `[S, B, H]` after this stage's layers. Padding stands to the right of real tokens,
        so that causal attention never sees it; of packed rows, `[P, 1, H]`, it sees each by itself."""
        finishes: bool = self.post_process  # type: ignore[has-type]
        self.post_process = False
        try:
            positions_BS = torch.arange(ids_BS.shape[1], device=ids_BS.device).expand_as(ids_BS)
            hidden_SBH: Tensor = super().forward(
                input_ids=ids_BS,
                position_ids=positions_BS,
                attention_mask=None,
                packed_seq_params=packed,
            )
        finally:
            self.post_process = finishes
        return hidden_SBH

    def head_weight(self) -> Tensor:
        """This rank's rows of the output projection, on the last stage."""
        if self.share_embeddings_and_output_weights:
            weight: Tensor = self.shared_embedding_or_output_weight()
            return weight
        projection: Tensor = self.output_layer.weight
        return projection

    def values(self, hidden_NH: Tensor) -> Tensor:
        """Float32 values `[N]`, on the last stage of a network that was given a head."""
        found: Tensor = self.value_head(hidden_NH.float())
        return found.squeeze(-1)


class CausalAttention(nn.Module):
    """Megatron's core attention by torch's fused kernels, where TransformerEngine is not installed. Ranks
    that share positions gather keys and values of all of them."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_others: Any) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(
        self,
        query_SBND: Tensor,
        key_SBGD: Tensor,
        value_SBGD: Tensor,
        *_mask: Any,
        packed_seq_params: PackedRows | None = None,
        **_others: Any,
    ) -> Tensor:
        """`[S, B, N * D]`, or `[P, N * D]` of packed rows."""
        if packed_seq_params is not None:
            return attend(query_SBND, key_SBGD, value_SBGD, packed_seq_params, self.scale)
        size, mask = parallel_state.get_context_parallel_world_size(), None
        if size > 1:
            rank, group = (
                parallel_state.get_context_parallel_rank(),
                parallel_state.get_context_parallel_group(),
            )
            mask = causal_mask(len(query_SBND) * size, rank, size).to(query_SBND.device)
            key_SBGD, value_SBGD = (
                gather_from_sequence_parallel_region(found.contiguous(), group=group)
                for found in (key_SBGD, value_SBGD)
            )
        query, key, value = (found.permute(1, 2, 0, 3) for found in (query_SBND, key_SBGD, value_SBGD))
        mixed_BNSD = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return mixed_BNSD.permute(2, 0, 1, 3).flatten(2)


def check_experts(model: Architecture) -> None:
    """Raise `ConfigError` where Megatron has no router without TransformerEngine: 0.16 to 0.19 have none."""
    if model.experts and not has_transformer_engine() and not hasattr(moe_utils, "te_general_gemm"):
        raise ConfigError(
            "backend megatron: the installed Megatron-Core routes tokens to experts with TransformerEngine "
            "alone, which is not installed; pip install 'transformer-engine[pytorch]', or use --backend fsdp"
        )


def build_network(model: Architecture, config: MegatronConfig, *, adapted: bool = False) -> Network:
    """This rank's part, on the CPU, weights not yet filled. Adapters read what linear layers read, which
    TransformerEngine's, joined with norms, do not show: with `adapted` there are Megatron's own."""
    settings = transformer_config(model, config)
    engine = has_transformer_engine() and not adapted
    spec = get_gpt_decoder_block_spec(settings, use_transformer_engine=engine, normalization="RMSNorm")
    if not engine:
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = CausalAttention
    network = Network(
        config=settings,
        transformer_layer_spec=spec,
        vocab_size=model.padded_vocabulary(config.tensor_parallel),
        max_sequence_length=model.positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tied,
        position_embedding_type="rope",
        rotary_base=model.rope_base,
        rope_scaling=model.rope_factor is not None,
        rope_scaling_factor=model.rope_factor or 1.0,
    )
    _mark_shards(network)
    network.to(settings.params_dtype)
    return network


def _mark_shards(network: Network) -> None:
    """What Megatron notes where it initialises weights, which is left out here: which parameters are shards,
    so that the others count once in the gradient's norm."""
    for module in network.modules():
        rows = isinstance(module, ColumnParallelLinear | VocabParallelEmbedding)
        if (rows or isinstance(module, RowParallelLinear)) and module.weight is not None:
            set_tensor_model_parallel_attributes(module.weight, True, 0 if rows else 1, 1)


def transformer_config(model: Architecture, config: MegatronConfig) -> TransformerConfig:
    """Megatron's settings. Losses are sums, so nothing is averaged over tokens, micro-batches or ranks."""
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return TransformerConfig(
        **_shape(model),
        **_experts(model),
        **_recompute(config),
        tensor_model_parallel_size=config.tensor_parallel,
        pipeline_model_parallel_size=config.pipeline_parallel,
        context_parallel_size=config.context_parallel,
        expert_model_parallel_size=config.expert_parallel,
        expert_tensor_parallel_size=config.tensor_parallel if config.expert_parallel == 1 else 1,
        sequence_parallel=config.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=config.precision == "bf16",
        calculate_per_token_loss=True,
        variable_seq_lengths=config.pipeline_parallel > 1,  # micro-batches of a pipeline differ in length
        deallocate_pipeline_outputs=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        moe_token_dispatcher_type="alltoall",  # checked in models without experts too
        gradient_accumulation_fusion=False,
    )


def _shape(model: Architecture) -> dict[str, Any]:
    return {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_query_groups": model.groups,
        "kv_channels": model.head_dim,
        "ffn_hidden_size": model.feed_forward,
        "normalization": "RMSNorm",
        "layernorm_epsilon": model.eps,
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": model.qkv_bias,
        "qk_layernorm": model.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
    }


def _experts(model: Architecture) -> dict[str, Any]:
    """Every token goes to its experts; none is dropped, and no auxiliary loss is added to ours."""
    if model.experts is None:
        return {}
    return {
        "num_moe_experts": model.experts.count,
        "moe_router_topk": model.experts.chosen,
        "moe_ffn_hidden_size": model.experts.hidden,
        "moe_router_pre_softmax": not model.experts.normalised,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32" if has_transformer_engine() else None,  # its kernel alone can do that
        "moe_aux_loss_coeff": 0.0,
        "moe_grouped_gemm": False,
    }


def _recompute(config: MegatronConfig) -> dict[str, Any]:
    if config.recompute == "none":
        return {}
    if config.recompute == "selective":
        return {"recompute_granularity": "selective"}
    return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
