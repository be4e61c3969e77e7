"""Files of a rank that has several boxes of one tensor, and folders that are no checkpoints."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlinf_core.errors import CheckpointError
from rlinf_core.shards import Shard, ShardSnapshot, keys, read

WHOLE = torch.arange(12.0).view(3, 4)


class Trap:
    """What a pickle of it makes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def box(rows: slice, columns: slice) -> Shard:
    return Shard("w", WHOLE[rows, columns].contiguous(), (rows.start, columns.start), (3, 4))


def test_several_boxes_of_a_tensor_in_one_file_make_a_whole(tmp_path: Path) -> None:
    """Entries 0 to 5 are one rank's, 6 to 11 another's: a row and half of the next each."""
    first = [box(slice(0, 1), slice(0, 4)), box(slice(1, 2), slice(0, 2))]
    second = [box(slice(1, 2), slice(2, 4)), box(slice(2, 3), slice(0, 4))]
    for rank, shards in enumerate((first, second)):
        ShardSnapshot(shards, rank, 2, None).write(tmp_path)
    assert {name: tensor.tolist() for name, tensor in load_file(_file(tmp_path)).items()} == {
        "w": [[0.0, 1.0, 2.0, 3.0]],
        "w#1": [[4.0, 5.0]],
    }
    assert keys(tmp_path, "any") == {"w"}
    columns = torch.zeros(3, 2)
    read([Shard("w", columns, (0, 1), (3, 4))], tmp_path, "any")
    assert torch.equal(columns, WHOLE[:, 1:3])


def test_entries_that_nobody_wrote_are_missed(tmp_path: Path) -> None:
    ShardSnapshot([box(slice(0, 1), slice(0, 4)), box(slice(1, 2), slice(0, 2))], 0, 1, None).write(tmp_path)
    with pytest.raises(CheckpointError, match="holds 6 of 12 numbers of w"):
        read([Shard("w", torch.zeros(3, 4), (0, 0), (3, 4))], tmp_path, "any")


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("__0_0.distcp", "backend megatron: .* in a format that can run code when it is read"),
        ("common.pt", r"backend megatron: no readable checkpoint in .* \(no shards\); name another one"),
        ("shard-00001-of-00001.safetensors", "is no part of a checkpoint"),
    ],
)
def test_what_is_no_checkpoint_is_told_in_one_line_and_not_run(file: str, says: str, tmp_path: Path) -> None:
    """Files that make another one when they are unpickled."""
    made = tmp_path / "made"
    (tmp_path / file).write_bytes(pickle.dumps(Trap(made)))
    with pytest.raises(CheckpointError, match=says) as caught:
        read([box(slice(0, 3), slice(0, 4))], tmp_path, "megatron")
    assert "\n" not in str(caught.value)
    assert not made.exists()
    pickle.loads((tmp_path / file).read_bytes())
    assert made.exists()


def _file(folder: Path) -> Path:
    return folder / "shard-00001-of-00002.safetensors"
