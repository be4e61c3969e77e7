"""Checkpoints: read by any number of ranks, unchanged by what is trained meanwhile, and never run."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from rlinf_backend_fsdp.checkpoint import parts, targets
from rlinf_backend_fsdp.world import World
from safetensors import safe_open
from torch import Tensor

from rlinf_core.errors import CheckpointError
from rlinf_core.shards import Reader, Shard, ShardSnapshot, read
from rlinf_core.testing.ranks import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import fsdp_ranks as support

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64)


def world(rank: int, size: int) -> World:
    return World(rank, size, torch.device("cpu"))


def write(state: dict[str, Tensor], own: dict[str, Tensor], rank: int, size: int, path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (file,) = ShardSnapshot(parts(state, own, world(rank, size)), rank, size, None).write(path)
    return file


def cut(tensor: Tensor, rank: int, size: int) -> tuple[Tensor, tuple[int, ...]]:
    """A rank's rows, as FSDP deals them: none are left for the last ones if there are too few."""
    rows = -(-len(tensor) // size)
    return tensor[rank * rows : (rank + 1) * rows], (min(rank * rows, len(tensor)), *(0,) * (tensor.ndim - 1))


@settings(max_examples=40, deadline=None)
@given(
    shape=some.lists(some.integers(1, 7), min_size=1, max_size=3),
    saved=some.integers(1, 5),
    loaded=some.integers(1, 5),
    dtype=some.sampled_from(DTYPES),
)
def test_what_some_ranks_wrote_any_number_of_ranks_reads(
    shape: list[int], saved: int, loaded: int, dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("shards")
    whole = (torch.rand(shape) * 100).to(dtype)
    for rank in range(saved):
        rows, offsets = cut(whole, rank, saved)
        mine = [Shard("x", rows, offsets, tuple(shape))] if rows.numel() else []
        ShardSnapshot(mine, rank, saved, None).write(path)
    with Reader(path) as reader:
        for rank in range(loaded):
            rows, offsets = cut(whole, rank, loaded)
            found = torch.zeros_like(rows)
            reader.read(Shard("x", found, offsets, tuple(shape)))
            assert torch.equal(found, rows)


def test_whole_tensors_are_dealt_to_the_ranks_and_each_is_written_once(tmp_path: Path) -> None:
    state = {f"w{size}": torch.full((size, 3), float(size)) for size in (9, 5, 4, 1)} | {
        "step": torch.tensor(7.0)
    }
    for rank in range(2):
        write(state, {f"random.{rank}": torch.tensor([rank])}, rank, 2, tmp_path)
    held = []
    for file in sorted(tmp_path.iterdir()):
        with safe_open(file, "pt") as handle:
            held.append(sorted(handle.keys()))
    assert held == [["random.0", "w1", "w9"], ["random.1", "step", "w4", "w5"]]
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    read(targets(found), tmp_path, "fsdp")
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_torch_reads_the_files_as_its_own(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import load
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    whole = torch.arange(15.0).view(5, 3)
    for rank in range(2):
        rows, offsets = cut(whole, rank, 2)
        ShardSnapshot([Shard("x", rows, offsets, (5, 3))], rank, 2, None).write(tmp_path)
    found = {"x": torch.zeros(5, 3)}
    load(found, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert torch.equal(found["x"], whole)


def test_training_changes_nothing_of_a_snapshot_that_is_written_later(tmp_path: Path) -> None:
    trainer = support.build(keep_reference=True)
    support.train(trainer, range(2))
    trainer.mark_reference()
    trainer.save(tmp_path / "then")
    snapshot = trainer.snapshot(apart=True)
    support.train(trainer, range(2, 4))
    trainer.host_is_elsewhere = True
    trainer.offload()
    (tmp_path / "later").mkdir()
    (file,) = snapshot.write(tmp_path / "later")
    assert file.read_bytes() == (tmp_path / "then" / file.name).read_bytes()
    assert snapshot.size < file.stat().st_size < snapshot.size + 40_000


def test_a_second_snapshot_in_the_same_memory_is_of_its_own_moment(tmp_path: Path) -> None:
    trainer = support.build(support.LORA)
    for step in range(3):
        support.train(trainer, [step])
        trainer.save(tmp_path / f"then{step}")
        snapshot = trainer.snapshot(apart=True)
        support.train(trainer, [step + 10])
        trainer.load(tmp_path / f"then{step}")
        (tmp_path / str(step)).mkdir()
        (file,) = snapshot.write(tmp_path / str(step))
        assert file.read_bytes() == (tmp_path / f"then{step}" / file.name).read_bytes()


class Trap:
    """Something that a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was run",))


def test_nothing_in_a_foreign_folder_is_run(tmp_path: Path) -> None:
    trainer = support.build()
    bomb = pickle.dumps(Trap())
    for name in (".metadata", "__0_0.distcp", "common.pt"):
        (tmp_path / name).write_bytes(bomb)
    with pytest.raises(CheckpointError, match="earlier version, in a format that can run code"):
        trainer.load(tmp_path)
    (tmp_path / "shard-00001-of-00001.safetensors").write_bytes(bomb)
    with pytest.raises(CheckpointError, match="is no part of a checkpoint"):
        trainer.load(tmp_path)
    trainer.save(tmp_path / "good")
    for name in (".metadata", "common.pt", "extra.pkl"):
        (tmp_path / "good" / name).write_bytes(bomb)
    trainer.load(tmp_path / "good")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("good")
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)}
    for rank in range(2):
        write(state, {}, rank, 2, folder)
    return folder, state


@settings(max_examples=300, deadline=None)
@given(data=some.data())
def test_a_damaged_file_is_one_clear_error_or_harmless(
    good: tuple[Path, dict[str, Tensor]], data: some.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of bytes that are changed, cut off or put in anywhere."""
    folder, state = good
    path = tmp_path_factory.mktemp("bad")
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    victim = path / "shard-00001-of-00002.safetensors"
    content = bytearray(victim.read_bytes())
    at = data.draw(some.integers(0, len(content) - 1))
    count = data.draw(some.integers(0, 8))
    content[at : at + count] = data.draw(some.binary(max_size=8))
    victim.write_bytes(bytes(content))
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    with contextlib.suppress(CheckpointError):
        read(targets(found), path, "fsdp")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda header: header["__metadata__"].pop("rlinf"), "is no part of a checkpoint"),
        (lambda header: header["__metadata__"].update(rlinf="[]"), "is no part of a checkpoint"),
        (lambda header: header["__metadata__"].update(DCP_SHARDING_INFO="{}"), "is no part of a checkpoint"),
        (lambda header: _whole(header, files=3), r"holds 2 of 3 files; it lacks shard-00001-of-00003"),
        (lambda header: _whole(header, files=10**18), r"holds 2 of 1000000000000000000 files"),
        (
            lambda header: _whole(header, shapes={"a": [4, 3]}),
            r"has a of shape \(4, 3\), and here it is \(2, 3\)",
        ),
        (lambda header: _whole(header, shapes={"a": [6]}), "fits no tensor"),
        (
            lambda header: header["__metadata__"].update(
                DCP_SHARDING_INFO=json.dumps({"a": {"saved_offsets": [1, 0]}})
            ),
            "holds 3 of 6 numbers of a",
        ),
    ],
)
def test_a_header_that_lies_is_found_out(
    good: tuple[Path, dict[str, Tensor]], change: Any, says: str, tmp_path: Path
) -> None:
    folder, state = good
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    victim = tmp_path / "shard-00001-of-00002.safetensors"
    content = victim.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    victim.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    with pytest.raises(CheckpointError, match=says):
        read(targets({name: torch.zeros_like(tensor) for name, tensor in state.items()}), tmp_path, "fsdp")


def _whole(header: dict[str, Any], **changes: Any) -> None:
    known = json.loads(header["__metadata__"]["rlinf"])
    header["__metadata__"]["rlinf"] = json.dumps(known | changes)


@pytest.mark.slow
@pytest.mark.nightly
def test_two_ranks_save_and_one_three_and_four_go_on(tmp_path: Path) -> None:
    """Bit for bit where they load it; as near as sums in another order are where they train on."""
    script = Path(__file__).with_name("fsdp_resharding.py")
    saved = run_ranks(script, 2, tmp_path / "2")
    for size in (1, 3, 4):
        found = run_ranks(script, size, tmp_path / str(size))
        for sharding in ("full", "none"):
            then, now = saved[sharding], found[sharding]
            assert (now["version"], list(now["loaded"])) == (5, list(then["loaded"]))
            for name, tensor in then["loaded"].items():
                assert torch.equal(now["loaded"][name], tensor), f"{size} {sharding} {name}"
            for name, tensor in then["trained"].items():
                torch.testing.assert_close(now["trained"][name], tensor, rtol=1e-4, atol=1e-6)
