"""Folders in the layout of openvla-7b: read, and written so that they load again. Any: JSON values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rlinf_core.errors import ModelError

CONFIG, STATISTICS, PREPROCESSOR = "config.json", "dataset_statistics.json", "preprocessor_config.json"
SHARD_BYTES = 4 << 30
_VALUES = "value_head."
_WEIGHTS = (".safetensors", ".bin", ".pt", ".index.json")


def read_json(folder: Path, name: str, plugin: str) -> dict[str, Any]:
    """Raises `ModelError` if it is missing or no JSON object."""
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ModelError(f"model.path ({plugin}): cannot read {folder / name}: {err}") from err
    if not isinstance(found, dict):
        raise ModelError(f"model.path ({plugin}): {folder / name} holds no JSON object")
    return found


def read_statistics(folder: Path, record: Mapping[str, Any], plugin: str) -> tuple[dict[str, Any], str]:
    """Of data sets, and the file they stand in: a fine-tune's own file, else `config.json`."""
    if (folder / STATISTICS).is_file():
        return read_json(folder, STATISTICS, plugin), str(folder / STATISTICS)
    return dict(record.get("norm_stats") or {}), str(folder / CONFIG)


def load_weights(network: nn.Module, folder: Path, dtype: Any, plugin: str) -> None:
    """Put the tensors of all files in the place of the network's own, which may be on no device.

    Raises `ModelError` for missing, foreign and differently sized ones.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"model.path ({plugin}): {folder} holds no .safetensors file")
    wanted = {n: tuple(t.shape) for n, t in network.state_dict().items() if not n.startswith(_VALUES)}
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no mapping
                    tensors[_own_name(name)] = opened.get_tensor(name).to(dtype)
        except (OSError, SafetensorError) as err:
            raise ModelError(f"model.path ({plugin}): cannot read {file}: {err}") from err
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    different = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if different:
        first = different[0]
        raise ModelError(
            f"model.path ({plugin}): {len(different)} weights in {folder} are not those that {CONFIG} asks "
            f"for; {first} is {found.get(first, 'missing')}, asked for is {wanted.get(first, 'nothing')}"
        )
    network.load_state_dict(tensors, strict=False, assign=True)


def save_weights(state: Iterator[tuple[str, Tensor]], path: Path) -> None:
    """`model.safetensors`, or numbered parts with an index; without the value head. Raises `OSError`."""
    parts: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = 0

    def write() -> None:
        try:
            save_file(held, path / f"part-{len(parts)}", metadata={"format": "pt"})
        except SafetensorError as err:  # how its writer tells of a full disk
            raise OSError(str(err)) from err
        parts.append(list(held))
        held.clear()

    for stale in [*path.glob("*.safetensors"), *path.glob("*.safetensors.index.json")]:
        stale.unlink()
    for name, tensor in state:
        if name.startswith(_VALUES):
            continue
        if held and sum(each.nbytes for each in held.values()) + tensor.nbytes > SHARD_BYTES:
            write()
        held[name] = tensor.detach().cpu().contiguous()
        total += tensor.nbytes
    write()
    _name_parts(parts, path, total)


def _name_parts(parts: list[list[str]], path: Path, total: int) -> None:
    if len(parts) == 1:
        (path / "part-0").rename(path / "model.safetensors")
        return
    places: dict[str, str] = {}
    for i, names in enumerate(parts):
        file = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        (path / f"part-{i}").rename(path / file)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    write_json(path, "model.safetensors.index.json", index)


def write_json(path: Path, name: str, record: Mapping[str, Any]) -> None:
    """Indented."""
    (path / name).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def copy_others(source: Path, path: Path) -> None:
    """What lies beside the weights of the checkpoint that a run started from, such as the tokenizer."""
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copyfile(file, path / file.name)


def _own_name(name: str) -> str:
    """timm's name of the scale of a layer is another."""
    for layer in (".ls1", ".ls2"):
        name = name.replace(f"{layer}.gamma", f"{layer}.scale_factor")
    return name
