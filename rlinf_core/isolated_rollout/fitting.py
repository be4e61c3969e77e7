"""What is refused before an engine is asked for it, in the same words by every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rlinf_core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from rlinf_core.isolated_rollout.engine import Setup

GIB = 2**30


def model_settings(setup: Setup) -> dict[str, Any]:  # Any: values of JSON
    """The model's configuration."""
    found: dict[str, Any] = json.loads((Path(setup.folder) / "config.json").read_text())
    return found


def check_length(length: int, setup: Setup, engine: str) -> int:
    """The longest prompt and response together; 0 asks for the model's context. Raises `ConfigError`."""
    if length > setup.context_length:
        raise ConfigError(
            f"rollout.max_length ({engine}): {length} is beyond the model's context of {setup.context_length}"
        )
    return length or setup.context_length


def check_parallel(tensor: int, pipeline: int, model: dict[str, Any], engine: str) -> None:
    """Sizes have to divide what they share. Raises `ConfigError`. Any: values of JSON."""
    heads, layers = model.get("num_attention_heads", 0), model.get("num_hidden_layers", 0)
    if heads % tensor:
        raise ConfigError(
            f"rollout.tensor_parallel_size ({engine}): {tensor} does not divide the model's {heads} heads"
        )
    if pipeline > layers:
        raise ConfigError(
            f"rollout.pipeline_parallel_size ({engine}): {pipeline} stages for a model of {layers} layers"
        )


def check_memory(wanted: float, free: float, total: float, key: str) -> None:
    """Raise `ConfigError` if what is wanted is not free. All in bytes; a `key` with "fraction" in its name is
    a share of the total, any other in GiB."""
    if wanted > free:
        most = 0.9 * free / (total if "fraction" in key else GIB)
        raise ConfigError(
            f"{key}: the engine would take {wanted / GIB:.1f} GiB of {total / GIB:.1f}, but "
            f"{free / GIB:.1f} are free beside what the trainer and others hold; choose {most:.2f} or less, "
            "or give the engine devices of its own by mode=disaggregated"
        )


def device_memory(device: str) -> tuple[int, int]:
    """Free and total bytes of a GPU, or of this machine for "cpu"."""
    if device == "cpu":
        lines = Path("/proc/meminfo").read_text().splitlines()
        known = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return known["MemAvailable"], known["MemTotal"]
    import torch

    return torch.cuda.mem_get_info(device)


def refuse_unserved(err: Exception, setup: Setup, engine: str, library: str) -> NoReturn:
    """Raise `ModelError` with what the library said of the model."""
    model = model_settings(setup)
    name = ", ".join(model.get("architectures") or ["?"])
    heads = model.get("num_attention_heads") or 1
    width = model.get("head_dim") or model.get("hidden_size", 0) // heads
    lines = [line for line in str(err).strip().splitlines() if line.strip()] or [type(err).__name__]
    raise ModelError(
        f"rollout {engine}: {library} does not serve this model on device {setup.device} (architecture "
        f"{name}, heads of {width}): {lines[0].strip()}; choose another model, or a rollout engine that runs "
        "the model itself"
    ) from err
