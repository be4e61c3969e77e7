"""The index of a checkpoint in torch's distributed format: a pickle, looked through before it is read.

A pickle can name anything to be run. That of a checkpoint names the few classes below, whose making runs
nothing else; one that names more is refused, and nothing of it has been run.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from rlinf_core.errors import CheckpointError

INDEX = ".metadata"
_TORCH = "torch.distributed.checkpoint."
_KNOWN = {
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # its name from Python 3.13 on
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    *(
        (f"{_TORCH}metadata", name)
        for name in (
            "_MEM_FORMAT_ENCODING",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
        )
    ),
    (f"{_TORCH}filesystem", "_StorageInfo"),
    *(
        (f"{_TORCH}planner", name)
        for name in ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
    ),
    *(
        ("megatron.core.dist_checkpointing.strategies.torch", name)
        for name in ("MCoreMetadata", "MCoreSavePlan")
    ),
}
_DTYPES = ("float", "bfloat", "int", "uint", "bool", "complex")


def check_index(path: Path) -> None:
    """Raise `CheckpointError` if the index in this folder is missing, unreadable, or names what has no
    business there."""
    try:
        with (path / INDEX).open("rb") as file:
            _Reader(file).load()
    except CheckpointError:
        raise
    except Exception as err:  # whatever bytes that are no pickle lead to
        raise CheckpointError(
            f"backend megatron: {path / INDEX} is no index of a checkpoint ({type(err).__name__}: {err}); "
            "name another one"
        ) from err


class _Reader(pickle.Unpickler):
    """Knows the classes of an index and no others."""

    def find_class(self, module: str, name: str) -> Any:  # Any: a class
        dtype = module == "torch" and name.startswith(_DTYPES) and name.replace("_", "").isalnum()
        if (module, name) not in _KNOWN and not dtype:
            raise CheckpointError(
                f"backend megatron: the checkpoint's index names {module}.{name}, which has no business "
                "there; it could run code that came with it, and was not read"
            )
        return super().find_class(module, name)
