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


def load_weights(network: nn.Module, path: Path) -> None:
    """Fill the network. Raises `ModelError` for a missing or unreadable file and for other sizes."""
    file = path / "model.safetensors"
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as err:
        raise ModelError(f"model.path (mlp_policy): cannot read {file}: {err}") from err
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if own != found:
        different = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
        first = different[0]
        raise ModelError(
            f"model.path (mlp_policy): {file} holds a policy of other sizes: {first} is {found.get(first)}, "
            f"this run needs {own.get(first)}; check model.hidden, model.chunk and the simulator"
        )
    network.load_state_dict(tensors)
