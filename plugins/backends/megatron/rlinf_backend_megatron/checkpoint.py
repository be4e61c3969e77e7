"""Checkpoints by Megatron's distributed checkpointing: each rank writes its part, any layout reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import dist_checkpointing

from rlinf_backend_megatron.index import check_index
from rlinf_core.errors import CheckpointError

if TYPE_CHECKING:
    from rlinf_backend_megatron.optimizer import Optimizer
    from rlinf_backend_megatron.trainer import MegatronTrainer

NUMBERS = "numbers.json"  # counters, beside Megatron's files
# Optimizer states as whole parameters, so that other parallel sizes can read them.
METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": False,
}


def save(trainer: MegatronTrainer, path: Path) -> None:
    """Every rank takes part. Raises `CheckpointError`."""
    numbers = {
        "version": trainer.version,
        "taken": trainer.optimizer.steps_taken,
        "skipped": trainer.optimizer.skipped_steps,
        "marked": trainer.reference.marked,
    }
    try:
        path.mkdir(parents=True, exist_ok=True)
        trainer.world.barrier()
        dist_checkpointing.save(_state(trainer, marked=trainer.reference.marked), str(path))
        if trainer.world.rank == 0:
            (path / NUMBERS).write_text(json.dumps(numbers))
        trainer.world.barrier()
    except (OSError, RuntimeError) as err:
        raise CheckpointError(f"backend megatron: cannot write {path}: {_first_line(err)}") from err


def load(trainer: MegatronTrainer, path: Path) -> None:
    """Restore weights, optimizer, counters and a marked reference. Raises `CheckpointError`."""
    numbers = _numbers(path)
    check_index(path)
    _check_common(path)
    try:
        if numbers["marked"]:
            trainer.reference.mark()
        state = _state(trainer, marked=numbers["marked"], loading=True)
        found: dict[str, Any] = dist_checkpointing.load(state, str(path))
        trainer.network.load_state_dict(found["model"], strict=not trainer.lora.rank)
        _load_optimizer(trainer.optimizer, found["optimizer"])
        if numbers["marked"]:
            trainer.reference.restore(found["reference"])
    except Exception as err:  # Megatron and torch raise many types for one cause: a folder that does not fit
        raise CheckpointError(
            f"backend megatron: cannot load the checkpoint {path} ({type(err).__name__}: {_first_line(err)}"
            "); name another one, or the model and settings that it was made with"
        ) from err
    trainer.version = numbers["version"]
    trainer.optimizer.steps_taken, trainer.optimizer.skipped_steps = numbers["taken"], numbers["skipped"]


def _numbers(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((path / NUMBERS).read_text())
    except (OSError, ValueError) as err:
        raise CheckpointError(
            f"backend megatron: no readable checkpoint in {path} ({err}); name another one"
        ) from err
    return found


def _check_common(path: Path) -> None:
    """Megatron's own files are read as torch reads weights: by names that it knows. Older releases of torch
    do so only when asked."""
    for file in path.glob("*.pt"):
        try:
            torch.load(file, map_location="cpu", weights_only=True)
        except Exception as err:  # of many types; all say that it is not what Megatron writes
            raise CheckpointError(
                f"backend megatron: {file} holds what is not run ({_first_line(err)}); name another one"
            ) from err


def _state(trainer: MegatronTrainer, *, marked: bool, loading: bool = False) -> dict[str, Any]:
    """Of what is trained; all else comes from the model."""
    weights = trainer.network.sharded_state_dict(metadata=dict(METADATA))
    if trainer.lora.rank:
        kept = {name for name, held in trainer.network.named_parameters() if held.requires_grad}
        weights = {name: sharded for name, sharded in weights.items() if name in kept}
    inner = trainer.optimizer.inner
    state: dict[str, Any] = {
        "model": weights,
        "optimizer": inner.sharded_state_dict(weights, is_loading=loading, metadata=dict(METADATA)),
    }
    if marked:
        state["reference"] = trainer.reference.sharded(weights, dict(METADATA))
    return state


def _load_optimizer(optimizer: Optimizer, state: dict[Any, Any]) -> None:
    """Sharded states of torch's AdamW are taken in apart: it counts steps beside each of them, which Megatron
    0.16 looks for among the stored tensors, does not find, and shares between all of them, so that each step
    would count many times. TransformerEngine's optimizer has no such counts."""
    parts = optimizer.parts()
    sharded = [part for part in parts if hasattr(part, "load_parameter_state_from_fully_reshardable")]
    if not sharded or not isinstance(parts[0].optimizer, torch.optim.AdamW):
        optimizer.inner.load_state_dict(state)
        return
    states = [state] if len(parts) == 1 else [state[number] for number in range(len(parts))]
    for part, own in zip(parts, states, strict=True):
        tensors = own.pop("param_state")
        part.load_state_dict(own)
        moments = part.optimizer.state
        counts = {parameter: held.pop("step") for parameter, held in moments.items()}
        part.load_parameter_state_from_fully_reshardable(tensors)
        for parameter, count in counts.items():
            moments[parameter]["step"] = count.clone()


def _first_line(err: BaseException) -> str:
    return (str(err).strip() or type(err).__name__).partition("\n")[0]
