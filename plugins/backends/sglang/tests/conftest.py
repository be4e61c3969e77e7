"""A folder in which a release of SGLang seems to be installed, which is the double; and weights to send."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor

from rlinf_core.comm.places import Place
from rlinf_core.isolated_rollout.buckets import Bucket
from rlinf_core.isolated_rollout.memory import WeightMemory

Doubled = Callable[[str], Path]
Shared = Callable[[dict[str, Tensor]], Bucket]


@pytest.fixture(scope="session")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Doubled:
    def make(release: str) -> Path:
        folder = tmp_path_factory.mktemp("double")
        (folder / "sglang.py").symlink_to(Path(__file__).parent / "double" / "sglang.py")
        information = folder / f"sglang-{release}.dist-info"
        information.mkdir()
        said = f"Metadata-Version: 2.1\nName: sglang\nVersion: {release}\n"
        (information / "METADATA").write_text(said)
        return folder

    return make


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    """Tensors as a bucket in shared memory, one after the other."""
    memory = WeightMemory()

    def put(tensors: dict[str, Tensor]) -> Bucket:
        told, _ = memory.write(tensors, "float32", 0)
        places = tuple(Place(name, kind, tuple(shape), begin) for name, kind, shape, begin in told["places"])
        return Bucket(f"/proc/{os.getpid()}/fd/{memory.descriptor}", told["size"], places)

    yield put
    memory.close()
