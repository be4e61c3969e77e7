"""Hidden states of whole sequences."""

from __future__ import annotations

from torch import Tensor, nn

from rlinf_model_hf_lm.architecture import causal_lm


def hidden_states(module: nn.Module, ids_BS: Tensor) -> Tensor:
    """`[B, S, H]` after the final norm, before the output projection."""
    hidden: Tensor = causal_lm(module).model(input_ids=ids_BS, use_cache=False).last_hidden_state
    return hidden
