"""What is known of a module's architecture: which parts may be read directly instead of called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

# Decoder-only models whose logits are `lm_head(norm(hidden))` and whose blocks are the Llama block
# (Qwen2 with biases, Qwen3 with normalised queries and keys).
LLAMA_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def causal_lm(module: nn.Module) -> Any:  # Any: transformers modules are not typed
    """The causal language model below adapters."""
    base = getattr(module, "get_base_model", None)
    return base() if callable(base) else module


def in_llama_family(module: nn.Module) -> bool:
    """True for a Llama-like model without sliding windows."""
    config: Any = getattr(causal_lm(module), "config", None)
    if config is None or config.model_type not in LLAMA_FAMILY:
        return False
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    windowed = config.model_type == "mistral" and config.sliding_window is not None
    return not windowed and set(layers) == {"full_attention"}


def is_plain(tensor: Tensor | None) -> bool:
    """True for an ordinary tensor: not sharded, quantised or otherwise wrapped."""
    return tensor is None or type(tensor) in (Tensor, nn.Parameter)


def is_plain_linear(layer: nn.Module) -> bool:
    """True when calling `layer` is exactly a matrix product with its `weight` (and `bias`)."""
    return (
        type(layer) is nn.Linear
        and "forward" not in layer.__dict__
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and is_plain(layer.weight)
        and is_plain(layer.bias)
    )


def blocks_may_be_read(module: nn.Module) -> bool:
    """True when a block's parts may be called one by one instead of the block: nothing is hooked to
    the blocks (sharding, checkpointing), and the parts are those of the Llama block."""
    if not in_llama_family(module):
        return False
    model = causal_lm(module).model
    config = model.config
    regular = config.hidden_act == "silu" and not (module.training and config.attention_dropout)
    checkpointed = any(getattr(block, "gradient_checkpointing", False) for block in model.layers)
    known = set(getattr(causal_lm(module), "_no_split_modules", None) or ())
    return (
        regular
        and not checkpointed
        and all(type(block).__name__ in known and not _is_hooked(block) for block in model.layers)
        and all(is_plain(parameter) for parameter in model.parameters())
    )


def _is_hooked(block: nn.Module) -> bool:
    return any(
        "forward" in part.__dict__ or part._forward_hooks or part._forward_pre_hooks
        for part in (block, *block.children())
    )


def plain_head(module: nn.Module) -> Tensor | None:
    """The output projection `[V, H]` where logits are nothing but hidden states times it, else None."""
    model = causal_lm(module)
    if getattr(getattr(model, "config", None), "model_type", "") not in LLAMA_FAMILY:
        return None
    head = model.lm_head
    if not is_plain_linear(head) or head.bias is not None:
        return None
    weight: torch.Tensor = head.weight
    return weight
