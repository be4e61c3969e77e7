"""What a trainer starts from: the module's weights, and what is trained beside the architecture's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_backend_megatron.mapping import Form, Piece, Split
from rlinf_core.adapters import adapted_module
from rlinf_core.api import LoRAConfig, Model
from rlinf_core.errors import ConfigError

ADAPTED = "base_model.model."  # how peft begins the names of what it adapts
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")  # tensor-parallel ranks have parts of what these read


@dataclass(frozen=True)
class Source:
    """Weights under the names that the module has without adapters."""

    config: Any  # of transformers
    state: Mapping[str, Tensor]
    sent: Mapping[str, str]  # the names that receivers know, by these names
    lora: LoRAConfig
    adapted: tuple[str, ...]  # linear layers that have adapters, in each of the model's
    head: nn.Module | None  # for values
    head_names: Mapping[str, str]  # names of its parameters within it, by these names

    def own_names(self) -> set[str]:
        """Of the architecture alone."""
        return {name for name in self.state if ".lora_" not in name and name not in self.head_names}

    def hollow(self) -> Source:
        """The same without the weights."""
        empty = {name: torch.empty_like(held, device="meta") for name, held in self.state.items()}
        return replace(self, state=empty)

    def forms(self, dtype: torch.dtype) -> dict[str, Form]:
        """Of all tensors, where the model has this dtype."""
        return {
            name: Form(tuple(tensor.shape), torch.float32 if name in self.head_names else dtype)
            for name, tensor in self.state.items()
        }

    def extra_pieces(self, layers: int) -> list[Piece]:
        """Adapters and the value head."""
        found = [piece for layer in range(layers) for name in self.adapted for piece in _adapter(layer, name)]
        for name, inner in self.head_names.items():
            found.append(Piece((name,), (f"value_head.{inner}",), "none", last=True, extra=True))
        return found


def read_source(model: Model, lora: LoRAConfig, seed: int) -> Source:
    """Of a new module. Raises `ConfigError` for adapters and heads that have no place in Megatron."""
    if lora.dropout:
        raise ConfigError(
            "lora.dropout: backend megatron has no dropout on adapters; set it to 0, or use --backend fsdp"
        )
    module: Any = adapted_module(model, lora, seed)  # Any: peft and transformers
    named = {_plain(name): (name, parameter) for name, parameter in module.named_parameters()}
    head = model.value_head(module)
    _check_head(head)
    inside = {} if head is None else {id(held): name for name, held in head.named_parameters()}
    return Source(
        config=getattr(module.get_base_model() if lora.rank else module, "config", None),
        state={plain: parameter for plain, (_, parameter) in named.items()},
        sent={plain: name for plain, (name, _) in named.items()},
        lora=lora,
        adapted=_adapted(named),
        head=head,
        head_names={plain: inside[id(held)] for plain, (_, held) in named.items() if id(held) in inside},
    )


def _plain(name: str) -> str:
    return name.removeprefix(ADAPTED).replace(".base_layer.", ".")


def _check_head(head: nn.Module | None) -> None:
    if head is not None and not (isinstance(head, nn.Linear) and head.out_features == 1):
        raise ConfigError(
            "backend megatron: values come from a linear layer with one output, and this model's value head "
            f"is {head}; use --backend fsdp"
        )


def _adapted(names: Mapping[str, Any]) -> tuple[str, ...]:
    """Which linear layers have adapters: the same ones in every layer of the model."""
    layers: dict[str, set[str]] = {}
    for name in names:
        inside, _, part = name.partition(".lora_A.")
        if part:
            number, _, linear = inside.removeprefix("model.layers.").partition(".")
            layers.setdefault(linear, set()).add(number)
    unknown = sorted(set(layers) - {*COLUMNS, *ROWS})
    everywhere = {name.split(".")[2] for name in names if name.startswith("model.layers.")}
    if unknown or any(numbers != everywhere for numbers in layers.values()):
        raise ConfigError(
            f"lora.target_modules: backend megatron has adapters on {', '.join((*COLUMNS, *ROWS))} of all "
            f"layers; asked for were {', '.join(unknown) or 'those of some layers alone'}"
        )
    return tuple(name for name in (*COLUMNS, *ROWS) if name in layers)


def _adapter(layer: int, linear: str) -> list[Piece]:
    """Of a linear layer whose output ranks share, B in rows; of one whose input they share, A in columns."""
    hf, place = f"model.layers.{layer}.{linear}", f"adapters.{linear.partition('.')[2]}"
    splits: tuple[Split, Split] = ("none", "rows") if linear in COLUMNS else ("columns", "none")
    return [
        Piece((f"{hf}.lora_{part}.default.weight",), (f"{place}.{part.lower()}",), split, layer, extra=True)
        for part, split in zip("AB", splits, strict=True)
    ]
