"""What Megatron has to know of a Hugging Face architecture, read from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlinf_core.errors import ConfigError

DOCS = "docs/backend-megatron.md"


@dataclass(frozen=True)
class Family:
    """How a Hugging Face `model_type` differs from Llama."""

    qkv_bias: bool = False
    qk_norm: bool = False
    experts: bool = False


# To add an architecture: a line here if its layer is Llama's up to these differences, and its names in
# `mapping.py` if they are others.
FAMILIES = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True, experts=True),
}
# Megatron's own constants of Llama 3's frequency scaling, of which only the factor can be set.
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in every layer."""

    count: int
    chosen: int  # experts of a token
    hidden: int
    normalised: bool  # the chosen experts' shares sum to one


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder-only model."""

    model_type: str
    layers: int
    hidden: int
    heads: int
    groups: int  # key and value heads
    head_dim: int
    feed_forward: int
    vocabulary: int
    positions: int
    eps: float
    rope_base: float
    rope_factor: float | None  # of Llama 3's frequency scaling
    tied: bool  # the head is the embedding
    qkv_bias: bool
    qk_norm: bool
    experts: Experts | None

    def padded_vocabulary(self, tensor_parallel: int) -> int:
        """A size that the tensor-parallel ranks share evenly."""
        return -(-self.vocabulary // tensor_parallel) * tensor_parallel


def read(config: Any) -> Architecture:  # Any: transformers configurations are not typed
    """The architecture of a configuration. Raises `ConfigError` for one that is not mapped."""
    kind = getattr(config, "model_type", None)
    family = FAMILIES.get(str(kind))
    if family is None:
        raise ConfigError(
            f"backend megatron: the architecture {kind!r} is not mapped to Megatron; mapped are "
            f"{', '.join(FAMILIES)}. Use --backend fsdp, or add it as {DOCS} describes"
        )
    _refuse_differences(config, str(kind))
    rope = config.rope_parameters
    return Architecture(
        model_type=str(kind),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        groups=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        feed_forward=config.intermediate_size,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        eps=config.rms_norm_eps,
        rope_base=rope["rope_theta"],
        rope_factor=_rope_factor(rope, str(kind)),
        tied=config.tie_word_embeddings,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        experts=_experts(config) if family.experts else None,
    )


def _refuse_differences(config: Any, kind: str) -> None:
    windows = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    found = {
        "hidden_act": config.hidden_act != "silu",
        "attention_bias": bool(getattr(config, "attention_bias", False)),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "layer_types": bool(windows),
        "mlp_only_layers": bool(getattr(config, "mlp_only_layers", None)),
        "decoder_sparse_step": getattr(config, "decoder_sparse_step", 1) != 1,
    }
    for name, different in found.items():
        if different:
            raise ConfigError(
                f"backend megatron: this {kind} has {name}={getattr(config, name)!r}, which is not mapped to "
                f"Megatron; use --backend fsdp, or add it as {DOCS} describes"
            )


def _rope_factor(rope: dict[str, Any], kind: str) -> float | None:
    if rope["rope_type"] == "default":
        return None
    if rope["rope_type"] == "llama3" and all(rope[name] == value for name, value in LLAMA3_ROPE.items()):
        return float(rope["factor"])
    raise ConfigError(
        f"backend megatron: this {kind} has rotary embeddings of type {rope['rope_type']!r} ({rope}), which "
        "are not mapped to Megatron; use --backend fsdp"
    )


def _experts(config: Any) -> Experts:
    return Experts(
        count=config.num_experts if hasattr(config, "num_experts") else config.num_local_experts,
        chosen=config.num_experts_per_tok,
        hidden=config.moe_intermediate_size,
        normalised=config.norm_topk_prob,
    )
