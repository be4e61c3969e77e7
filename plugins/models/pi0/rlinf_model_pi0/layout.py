"""The layouts of published checkpoints: names of weights, and the `config.json` that lies beside them.

OpenPI's and LeRobot's weights have the same names, but for a `model.` before all of LeRobot's. Any: JSON
values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlinf_core.errors import ModelError

LEROBOT = "model."
_JOINT = "paligemma_with_expert."
_PARTS = (  # of transformers' names -> of published ones; the first that fits is taken
    ("model.vlm.language_model.embed_tokens.", f"{_JOINT}paligemma.lm_head."),
    ("model.vlm.language_model.", f"{_JOINT}paligemma.model.language_model."),
    ("model.vlm.vision_tower.", f"{_JOINT}paligemma.model.vision_tower.vision_model."),
    ("model.vlm.", f"{_JOINT}paligemma.model."),
    ("model.dit.embed_tokens.", f"{_JOINT}gemma_expert.lm_head."),
    ("model.dit.", f"{_JOINT}gemma_expert.model."),
    ("embed_action_time.", ""),
)
_VARIANTS = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
_SIZES = {  # of transformers' settings -> names that others have for them
    "chunk_size": ("chunk_size", "action_horizon"),
    "max_action_dim": ("max_action_dim", "action_dim"),
    "max_state_dim": ("max_state_dim", "action_dim"),
    "num_inference_steps": ("num_inference_steps",),
}
_READ_TOO = (  # names that other versions of transformers write
    (f"{_JOINT}paligemma.model.language_model.model.", "model.vlm.language_model."),
    (f"{_JOINT}paligemma.model.vision_tower.", "model.vlm.vision_tower."),
)
_OF_ACTIONS = ("state_proj.", "action_in_proj.", "action_time_mlp_in.", "action_time_mlp_out.")


def own(name: str) -> str:
    """transformers' name of a published weight, under LeRobot's or OpenPI's."""
    bare = name.removeprefix(LEROBOT) if not name.startswith(("model.vlm.", "model.dit.")) else name
    if bare.startswith(_OF_ACTIONS):
        return f"embed_action_time.{bare}"
    pairs = [(theirs, ours) for ours, theirs in _PARTS if theirs]
    for theirs, ours in sorted([*pairs, *_READ_TOO], key=lambda pair: -len(pair[0])):
        if bare.startswith(theirs):
            return ours + bare.removeprefix(theirs)
    return bare


def published(name: str) -> str:
    """OpenPI's name of a weight."""
    for ours, theirs in _PARTS:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def weight_names(folder: Path) -> set[str]:
    """As they stand in the folder. Raises `ModelError`."""
    return {name for file in _files(folder) for name in _read(file, lambda opened: set(opened.keys()))}


def read_weights(folder: Path, kind: torch.dtype) -> dict[str, Tensor]:
    """All of them, under transformers' names. Raises `ModelError`."""

    def take(opened: Any) -> dict[str, Tensor]:  # Any: not typed
        return {own(name): opened.get_tensor(name).to(kind) for name in opened.keys()}  # noqa: SIM118

    found: dict[str, Tensor] = {}
    for file in _files(folder):
        found |= _read(file, take)
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("model*.safetensors"))


def _read(file: Path, take: Callable[[Any], Any]) -> Any:
    try:
        with safe_open(file, framework="pt") as opened:
            return take(opened)
    except (OSError, SafetensorError) as err:
        raise ModelError(f"model.path (pi0): cannot read {file}: {err}") from err


def is_five(names: set[str]) -> bool:
    """Whether weights are those of pi0.5, whose time has layers of its own."""
    return bool(names & {"time_mlp_in.weight", f"{LEROBOT}time_mlp_in.weight"})


def is_lerobot(names: set[str]) -> bool:
    """Whether all names have LeRobot's beginning."""
    return f"{LEROBOT}action_out_proj.weight" in names


def read_record(folder: Path) -> dict[str, Any]:
    """`config.json`. Raises `ModelError`."""
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ModelError(
            f"model.path (pi0): {str(folder)!r} is no directory with a config.json that can be read ({err}); "
            "name a pi0 checkpoint in the layout of transformers, LeRobot or OpenPI, or set model.preset=tiny"
        ) from err
    if not isinstance(found, dict):
        raise ModelError(f"model.path (pi0): {file} holds no JSON object")
    return found


def transformers_record(record: dict[str, Any], where: str) -> dict[str, Any]:
    """What transformers' configuration is made from. Raises `ModelError` for other models and sizes."""
    if record.get("model_type") == "pi0":
        return record
    kind = record.get("type", "pi0" if "action_horizon" in record else record.get("model_type"))
    if kind not in ("pi0", "pi05"):
        raise ModelError(f"model.path (pi0): {where} holds a {kind!r} model, not pi0 or pi05")
    for name, size in _VARIANTS.items():
        if record.get(name, size) != size:
            raise ModelError(
                f"model.path (pi0): {where} says {name} {record[name]!r}; only {size} is known. Give the "
                "folder a config.json of transformers, which states all sizes"
            )
    found: dict[str, Any] = {}
    for own, theirs in _SIZES.items():
        given = [record[name] for name in theirs if name in record]
        found |= {own: given[0]} if given else {}
    return found
