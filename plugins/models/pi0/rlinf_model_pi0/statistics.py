"""Between the units of a robot and those of the network, by the statistics of a data set.

Axes: C actions of a chunk, A action dimensions, S state size; leading axes are left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rlinf_core.errors import ModelError

FILES = ("statistics.json", "processor_config.json")  # looked for beside the weights, in this order
ASSETS = "assets"  # OpenPI's folder of statistics, one a robot
_OPENPI = f"{ASSETS}/*/norm_stats.json"
_LEROBOT = "policy_preprocessor_step_*_normalizer_processor.safetensors"
_LEROBOT_PARTS = {"state": "observation.state", "actions": "action"}
Numbers = dict[str, list[float]]
NAMES = ("mean", "std", "q01", "q99")


@dataclass(frozen=True)
class Affine:
    """`(x - offset) / scale` for the network, and back. float32."""

    offset: Tensor
    scale: Tensor

    def forward(self, values: Tensor) -> Tensor:
        """To the network's units."""
        return (values - self.offset.to(values)) / self.scale.to(values)

    def back(self, units: Tensor) -> Tensor:
        """From the network's units."""
        return units * self.scale.to(units) + self.offset.to(units)


@dataclass(frozen=True)
class Statistics:
    """Of `state` and `actions`: `mean` and `std`, or `q01` and `q99`, or both."""

    source: str
    parts: dict[str, Numbers]

    def affine(self, part: str, normalization: str, size: int) -> Affine:
        """How a part is normalised: to mean 0 and deviation 1, or its quantiles to -1 and 1.

        Raises `ModelError` for statistics that are missing or of another size.
        """
        names = ("mean", "std") if normalization == "mean_std" else ("q01", "q99")
        found = self.parts.get(part, {})
        missing = [name for name in names if name not in found]
        if missing:
            known = ", ".join(f"{key}.{name}" for key, value in self.parts.items() for name in value)
            raise ModelError(
                f"model.normalization (pi0): {normalization} takes {part}.{missing[0]}, but {self.source} "
                f"has {known or 'nothing'}"
            )
        shortest = min(len(found[name]) for name in names)
        if shortest < size:
            raise ModelError(
                f"model.statistics (pi0): {self.source} has {shortest} numbers for {part}, "
                f"the simulator's has {size}"
            )
        first, second = (torch.tensor(found[name][:size], dtype=torch.float32) for name in names)
        if normalization == "mean_std":
            return Affine(first, second + 1e-8)
        half = 0.5 * (second - first + 1e-6)
        return Affine(first + half, half)

    def save(self, path: Path) -> None:
        """Write `statistics.json`."""
        (path / FILES[0]).write_text(json.dumps(self.parts, indent=2) + "\n")


def find_statistics(file: str, beside: str) -> Statistics | None:
    """Of the file, or of the first that lies beside the weights and has any. Raises `ModelError`."""
    if file:
        found = _read(Path(file))
        if found is None:
            raise ModelError(
                f"model.statistics (pi0): {file} has neither 'state' nor 'actions' (each with mean and std, "
                "or q01 and q99), nor state_mean, state_std, actions_mean and actions_std"
            )
        return found
    read = (_read(place) for place in (_places(Path(beside)) if beside else []))
    return next((found for found in read if found is not None), None)


def _places(folder: Path) -> list[Path]:
    """Of transformers and of ours, of LeRobot and of OpenPI. Raises `ModelError` for several of one kind."""
    found = [folder / name for name in FILES if (folder / name).is_file()]
    for pattern in (_LEROBOT, _OPENPI):
        files = sorted(folder.glob(pattern))
        if len(files) > 1 and not found:
            raise ModelError(
                f"model.statistics (pi0): {folder} holds several: "
                f"{', '.join(str(file.relative_to(folder)) for file in files)}; name one"
            )
        found += files
    return found


def _read(file: Path) -> Statistics | None:
    if file.suffix == ".safetensors":
        return _read_lerobot(file)
    try:
        content: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as err:
        raise ModelError(f"model.statistics (pi0): cannot read {file}: {err}") from err
    content = content.get("norm_stats", content)
    parts = {part: _numbers(content, part) for part in ("state", "actions")}
    parts = {part: numbers for part, numbers in parts.items() if numbers}
    return Statistics(str(file), parts) if parts else None


def _read_lerobot(file: Path) -> Statistics | None:
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as err:
        raise ModelError(f"model.statistics (pi0): cannot read {file}: {err}") from err
    parts = {
        part: {
            name: tensors[f"{key}.{name}"].flatten().tolist() for name in NAMES if f"{key}.{name}" in tensors
        }
        for part, key in _LEROBOT_PARTS.items()
    }
    parts = {part: numbers for part, numbers in parts.items() if numbers}
    return Statistics(str(file), parts) if parts else None


def _numbers(content: dict[str, Any], part: str) -> Numbers:  # Any: JSON
    nested = content.get(part, {})
    flat = {name: content.get(f"{part}_{name}") for name in ("mean", "std")}
    found = {**{name: value for name, value in flat.items() if value is not None}, **nested}
    return {name: found[name] for name in NAMES if name in found}
