"""The index of a checkpoint is looked through before anything reads it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from rlinf_backend_megatron.index import INDEX, check_index

from rlinf_core.errors import CheckpointError


class Trap:
    """Something that a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was run",))


class Import:
    """A class whose mere making runs its arguments."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, ("__import__('pytest').fail('a pickle was run')",))


def test_the_index_of_a_checkpoint_passes(tmp_path: Path) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8)
    state = {str(kind): torch.ones(3, 2).to(kind) for kind in kinds}
    dcp.save({"model": state, "step": 3}, checkpoint_id=tmp_path, no_dist=True)
    check_index(tmp_path)


@pytest.mark.parametrize("trap", [Trap(), Import(), {"a": [Trap()]}, torch.load, torch.hub.load])
def test_an_index_that_would_run_something_is_refused_and_not_run(tmp_path: Path, trap: Any) -> None:
    (tmp_path / INDEX).write_bytes(pickle.dumps(trap))
    with pytest.raises(CheckpointError, match="which has no business there"):
        check_index(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04nonsense", b"{}"])
def test_a_folder_without_an_index_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"\.metadata is no index of a checkpoint"):
        check_index(tmp_path)
