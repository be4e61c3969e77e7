"""Which architectures take packed rows: those whose attention goes through the interface of
transformers and reads nothing else of a row than that.

Every name here is tested against rows on their own. State-space and hybrid models, other masks, capped
scores and attention sinks are left out on purpose: they compute padded rows.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from rlinf_core.errors import ModelError
from rlinf_model_hf_lm.architecture import causal_lm
from rlinf_model_hf_lm.attention import NAME, install

# Those that name their sliding windows to attention, and those that know none.
# fmt: off
WINDOWED = frozenset((
    "cohere2", "exaone4", "gemma3_text", "ministral", "mistral", "mixtral", "olmo3", "phi3", "qwen2",
    "qwen3", "qwen3_moe", "starcoder2",
))
UNWINDOWED = frozenset((
    "arcee", "cohere", "ernie4_5", "gemma", "glm", "glm4", "gpt_neox", "granite", "granitemoe", "helium",
    "hunyuan_v1_dense", "llama", "olmo", "olmo2", "olmoe", "phi", "qwen2_moe", "seed_oss", "smollm3",
))
# fmt: on
KNOWN = WINDOWED | UNWINDOWED
LAYERS = frozenset({"full_attention", "sliding_attention"})

_log = logging.getLogger(__name__)


def prepare(module: nn.Module, packing: str) -> bool:
    """Make a new module take packed rows; whether it does. Where it cannot, raises `ModelError` if `packing`
    is "always", and says so in one line if it is "auto"."""
    if packing == "never":
        return False
    reason = obstacle(module)
    if reason is None:
        install(causal_lm(module).config)
    elif packing == "always":
        raise ModelError(f"model.packing is 'always', but {reason}; set model.packing: auto for padded rows")
    else:
        _log.warning("hf_lm: rows are padded in training: %s", reason)
    return reason is None


def obstacle(module: nn.Module) -> str | None:
    """Why a module cannot take packed rows; None if it can."""
    config: Any = causal_lm(module).config
    kind = config.model_type
    if kind not in KNOWN or not type(causal_lm(module)).__module__.startswith("transformers."):
        return f"{kind} is not known to take packed rows; those known: {', '.join(sorted(KNOWN))}"
    if config._attn_implementation not in ("sdpa", NAME):
        return f"packed rows need attn_implementation 'sdpa', not {config._attn_implementation!r}"
    layers = set(getattr(config, "layer_types", None) or ())
    if layers - LAYERS:
        return f"{kind} has layers of the kind {', '.join(sorted(layers - LAYERS))}"
    if getattr(config, "use_bidirectional_attention", False):
        return f"this {kind} attends to later tokens too"
    if _has_windows(config) and kind not in WINDOWED:
        return f"{kind} with sliding windows is not known to take packed rows"
    return None


def even_tokens(module: nn.Module) -> float:
    """Tokens of a row that spends about as much on attention as on all else. With hidden size H a layer's
    linear maps take some 24 H^2 operations a token, and attention 2 H a token before it; these run half as
    fast."""
    return 6.0 * float(causal_lm(module).config.get_text_config().hidden_size)


def takes_packed_rows(module: nn.Module) -> bool:
    """True for modules that `prepare` has made so."""
    config: Any = getattr(causal_lm(module), "config", None)
    if config is None or config._attn_implementation != NAME:
        return False
    dropout = getattr(config, "attention_dropout", 0.0) or getattr(config, "attn_pdrop", 0.0)
    return not (module.training and dropout)


def _has_windows(config: Any) -> bool:
    layers = getattr(config, "layer_types", None)
    if layers:
        return "sliding_attention" in layers
    return getattr(config, "sliding_window", None) is not None
