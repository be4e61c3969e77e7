"""The separate files of OFT's own parts: `PART--STEPS_checkpoint.pt` beside the weights of OpenVLA."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from rlinf_core.errors import ModelError
from rlinf_model_openvla import checkpoint

ACTION_HEAD, PROPRIO = "action_head", "proprio_projector"
PARTS = (ACTION_HEAD, PROPRIO)
_WRITTEN = "latest"
_WRAPPED = "module."  # before every name where a part was trained on several devices


def part_file(folder: Path, part: str) -> Path | None:
    """The file of a part, if there is one. Raises `ModelError` for several."""
    files = sorted(folder.glob(f"{part}--*_checkpoint.pt"))
    if len(files) > 1:
        raise ModelError(
            f"model.path (openvla_oft): {folder} holds several files of {part}: "
            f"{', '.join(file.name for file in files)}; keep one"
        )
    return files[0] if files else None


def read_part(file: Path) -> dict[str, Tensor]:
    """Names and tensors; nothing else is unpickled. Raises `ModelError`."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as err:
        raise ModelError(f"model.path (openvla_oft): cannot read {file}: {err}") from err
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"model.path (openvla_oft): {file} holds no names with tensors")
    return {str(name).removeprefix(_WRAPPED): value for name, value in found.items()}


def fill_part(module: nn.Module, file: Path, asked: str) -> None:
    """Copy a part's weights. Raises `ModelError` for missing, foreign and differently sized ones, of which
    `asked` says what they should fit."""
    found, own = read_part(file), module.state_dict()
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    wanted = {name: tuple(value.shape) for name, value in own.items()}
    different = sorted(name for name in wanted.keys() | shapes.keys() if wanted.get(name) != shapes.get(name))
    if different:
        first = different[0]
        raise ModelError(
            f"model.path (openvla_oft): {file.name} does not fit {asked}: {first} is "
            f"{shapes.get(first, 'missing')}, asked for is {wanted.get(first, 'nothing')}"
        )
    module.load_state_dict(found)


def save_weights(state: Iterator[tuple[str, Tensor]], path: Path) -> None:
    """The parts in files of their own, the rest as OpenVLA's. Raises `OSError`."""
    parts: dict[str, dict[str, Tensor]] = {}

    def others() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in state:
            part, _, own_name = name.partition(".")
            if part in PARTS:
                parts.setdefault(part, {})[own_name] = tensor.detach().cpu().clone()
            else:
                yield name, tensor

    for part in PARTS:
        for stale in path.glob(f"{part}--*_checkpoint.pt"):
            stale.unlink()
    checkpoint.save_weights(others(), path)
    for part, tensors in parts.items():
        torch.save(tensors, path / f"{part}--{_WRITTEN}_checkpoint.pt")
