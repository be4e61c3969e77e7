"""Exported policies: `model.safetensors` beside a `config.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rlinf_core.api import Space
    from rlinf_model_mlp_policy.config import MLPPolicyConfig

_VALUES = "value."  # where the names of a value head's weights begin


def save_weights(
    state: Iterator[tuple[str, Tensor]],
    path: Path,
    config: MLPPolicyConfig,
    states: int,
    pictures: Mapping[str, Sequence[int]],
    action: Space,
) -> None:
    """Write the policy with what is needed to build it without its simulator. Any: JSON values."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in state}
    save_file(tensors, path / "model.safetensors")
    record: dict[str, Any] = {"model": "mlp_policy", **asdict(config), "path": "", "states": states}
    record |= {"pictures": {name: list(shape) for name, shape in pictures.items()}, "action": asdict(action)}
    (path / "config.json").write_text(json.dumps(record, indent=2) + "\n")


def load_weights(network: nn.Module, path: Path, config: MLPPolicyConfig) -> None:
    """Fill the network; a value head that only one of the two has is left as it is, or left out.

    Raises `ModelError` for a missing or unreadable file, for other sizes and for another distribution.
    """
    file = path / "model.safetensors"
    try:
        tensors = load_file(file)
        record = json.loads((path / "config.json").read_text())
    except (OSError, ValueError, SafetensorError) as err:
        raise ModelError(f"model.path (mlp_policy): cannot read {file} and its config.json: {err}") from err
    for name in ("std", "squash"):
        if record.get(name, getattr(config, name)) != getattr(config, name):
            raise ModelError(
                f"model.{name} (mlp_policy): {getattr(config, name)}: the policy in {path} was made with "
                f"{record[name]}; set model.{name} to that"
            )
    state = network.state_dict()
    if not (_is_valued(state) and _is_valued(tensors)):
        state, tensors = _without_values(state), _without_values(tensors)
    own = {name: tuple(tensor.shape) for name, tensor in state.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if own != found:
        different = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
        first = different[0]
        raise ModelError(
            f"model.path (mlp_policy): {file} holds a policy of other sizes: {first} is {found.get(first)}, "
            f"this run needs {own.get(first)}; check model.hidden, model.chunk, model.value_head and the "
            "simulator"
        )
    network.load_state_dict(tensors, strict=False)


def _is_valued(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.startswith(_VALUES) for name in tensors)


def _without_values(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_VALUES)}
