"""Low-rank adapters by peft, the same for every trainer, rollout and export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rlinf_core.errors import ConfigError, ModelError
from rlinf_core.optional import require

if TYPE_CHECKING:
    from rlinf_core.api import LoRAConfig, Model

ALL_LINEAR = "all-linear"


def adapted_module(model: Model, lora: LoRAConfig, seed: int = 0) -> nn.Module:
    """The model's module, with adapters initialised from `seed` alone where the settings ask for them; then
    only these and the value head require gradients.

    Raises `ConfigError` if no module has a name in `lora.target_modules`.
    """
    module = model.module(seed)
    if not lora.rank:
        return module
    peft = require("peft", "peft", "lora.rank")
    head = model.value_head(module)
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_rslora=lora.variant == "rslora",
        use_dora=lora.variant == "dora",
        target_modules=_targets(module, lora.target_modules, model.adaptable(module), head),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = cast(nn.Module, peft.get_peft_model(module, config))
    if head is not None:
        head.requires_grad_(True)
    return adapted


def export_adapted(
    model: Model, lora: LoRAConfig, seed: int, state: Mapping[str, Tensor], path: Path
) -> None:
    """Write the model's own format, adapters merged, and adapters alone to `path/adapter`, as peft does.

    `state` has the names of `adapted_module`. They are merged in a module of its own: the trained one is
    never touched. Raises `OSError`.
    """
    from safetensors import SafetensorError

    adapted: Any = adapted_module(model, lora, seed)  # Any: peft
    missing = [name for name, _ in adapted.named_parameters() if name not in state]
    if missing:
        raise ModelError(f"weights with adapters lack {', '.join(missing[:4])}; nothing was exported")
    adapted.load_state_dict(state, strict=False)
    try:
        adapted.save_pretrained(path / "adapter")
    except SafetensorError as err:  # how its writer tells of a full disk
        raise OSError(str(err)) from err
    model.export(iter(adapted.merge_and_unload().state_dict().items()), path)


def _targets(
    module: nn.Module, wanted: tuple[str, ...], within: list[nn.Module], without: nn.Module | None
) -> list[str]:
    """Full names of the linear modules that get adapters; never the output head."""
    output = getattr(module, "get_output_embeddings", None)
    eligible = {part for root in within for part in root.modules() if isinstance(part, nn.Linear)}
    eligible -= set() if without is None else set(without.modules())
    if callable(output):
        eligible.discard(output())
    linear = [name for name, part in module.named_modules() if part in eligible]
    if ALL_LINEAR in wanted:
        return linear
    missing = [want for want in wanted if not any(_is(name, want) for name in linear)]
    if missing or not wanted:
        known = sorted({name.rsplit(".", 1)[-1] for name in linear})
        raise ConfigError(
            f"lora.target_modules: no linear module is named {', '.join(missing) or '(none given)'}; "
            f"there are {', '.join(known)}, or use {ALL_LINEAR!r}"
        )
    return [name for name in linear if any(_is(name, want) for want in wanted)]


def _is(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")
