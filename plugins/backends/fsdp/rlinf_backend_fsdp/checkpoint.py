"""Checkpoints by `torch.distributed.checkpoint`: tensors only, read by any number of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rlinf_backend_fsdp.world import World
from rlinf_core.errors import CheckpointError


def write(state: dict[str, Tensor], path: Path, world: World) -> None:
    """Every rank takes part; what all ranks have is written once. Raises `CheckpointError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _one_process_is_fine():
            save(state, storage_writer=FileSystemWriter(path), no_dist=world.size == 1)
    except (OSError, RuntimeError, CheckpointException) as err:
        raise CheckpointError(f"backend fsdp: cannot write {path}: {_first_line(err)}") from err


def keys(path: Path) -> set[str]:
    """The names in a checkpoint. Raises `CheckpointError`."""
    try:
        return set(FileSystemReader(path).read_metadata().state_dict_metadata)
    except Exception as err:  # bytes that are no pickle make it raise whatever they happen to spell
        raise CheckpointError(
            f"backend fsdp: no readable checkpoint in {path} ({type(err).__name__}: {err}); name another one"
        ) from err


def read(state: dict[str, Tensor], path: Path, world: World) -> None:
    """Fill the tensors in place. Raises `CheckpointError`."""
    missing = sorted(set(state) - keys(path))
    if missing:
        raise CheckpointError(
            f"backend fsdp: the checkpoint {path} lacks {len(missing)} tensors, such as {missing[0]!r}; it "
            "was made with another model or other lora settings"
        )
    try:
        with _one_process_is_fine():
            load(state, storage_reader=FileSystemReader(path), no_dist=world.size == 1)
    except (OSError, ValueError, RuntimeError, CheckpointException) as err:
        raise CheckpointError(f"backend fsdp: cannot load the checkpoint {path}: {_first_line(err)}") from err


def _first_line(err: BaseException) -> str:
    """What went wrong on the first rank that failed, or here."""
    failures = getattr(err, "failures", None)
    first = next(iter(failures.values()))[0] if failures else err
    return str(first).strip().partition("\n")[0]


@contextmanager
def _one_process_is_fine() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
