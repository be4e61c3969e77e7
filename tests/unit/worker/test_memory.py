"""Want of memory: how it is recognised, and what is said of it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlinf_core.config.compose import compose
from rlinf_core.config.less_memory import suggestions
from rlinf_core.config.options import Options
from rlinf_core.errors import OutOfMemoryError, WorkerDied, WorkerError
from rlinf_core.hosting import process
from rlinf_core.run.exhaustion import explained
from rlinf_core.worker.failures import raised
from rlinf_core.worker.memory import KILLED, held_by, is_exhausted, kills_for_memory, resident
from rlinf_core.worker.worker import Worker, WorkerContext

TOO_MUCH = 1 << 60  # bytes
TEXT = ("model=hf_lm", "model.preset=char-llama", "data=sort_digits", "reward=exact")
EMBODIED = ("simulator=gymnasium", "simulator.id=InvertedPendulum-v5", "model=mlp_policy")


class Full(Worker):
    """Holds two gigabytes, as it says."""

    def memory_bytes(self) -> float:
        return 2e9


def failure(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        function()
    return caught.value


@pytest.mark.parametrize(
    "ask",
    [
        lambda: np.empty(TOO_MUCH, dtype=np.uint8),
        lambda: torch.empty(TOO_MUCH, dtype=torch.uint8),
        lambda: bytearray(TOO_MUCH),
    ],
    ids=["numpy", "torch", "python"],
)
def test_a_failed_allocation_is_told_with_its_place_and_what_was_resident(ask: Callable[[], Any]) -> None:
    error = failure(ask)
    assert is_exhausted(error)
    held = resident({"actor[0]": Full(WorkerContext()), "reward[0]": Worker(WorkerContext())})
    told = str(raised(error, "actor[0]", "train", lambda: held))
    assert told.startswith("actor[0].train ran out of memory in ")
    assert "resident: actor[0] 2.0 GB; the process holds " in told
    assert "test_memory.py" in told


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),  # what a value says is not what happened
    ],
)
def test_what_counts_as_want_of_memory(error: BaseException, expected: bool) -> None:
    assert is_exhausted(error) is expected


def test_the_kernels_count_of_kills_is_read_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "vmstat"
    path.write_text("pgfault 12\noom_kill 3\nother 9\n")
    assert kills_for_memory(path) == 3
    path.write_text("pgfault 12\n")
    assert kills_for_memory(path) is None
    assert kills_for_memory(tmp_path / "none") is None


def test_what_this_process_holds_is_known() -> None:
    assert held_by(os.getpid()) > 10e6
    assert held_by(2**22 + 1) == 0


def test_a_kill_is_laid_on_memory_only_where_the_kernel_counted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    child = object.__new__(process.ChildProcess)
    child._kills, child._held = 3, 5_000_000
    monkeypatch.setattr(process, "kills_for_memory", lambda: 3)
    assert not child._lacked_memory()
    assert process.describe_exit(-signal.SIGKILL) == "was killed by SIGKILL"
    monkeypatch.setattr(process, "kills_for_memory", lambda: 4)
    assert child._lacked_memory()
    monkeypatch.setattr(process, "kills_for_memory", lambda: None)
    assert process.describe_exit(-signal.SIGKILL) == "was killed by SIGKILL (out of memory?)"


@pytest.mark.parametrize("task", [TEXT, EMBODIED], ids=["text", "embodied"])
@pytest.mark.parametrize("component", ["actor", "rollout", "environment", "reward", "driver"])
def test_three_settings_are_named_and_each_can_be_given(component: str, task: tuple[str, ...]) -> None:
    found = suggestions(compose(Options(overrides=task)), component)
    assert len(found) == 3
    for each in found:
        setting, _, now = each.partition(" (is ")
        key, _, value = setting.split()[-1].partition("=")
        changed = compose(Options(overrides=(*task, *setting.split())))
        read: Any = changed
        for part in key.split("."):
            holder = read.config if hasattr(read, "config") else read
            read = getattr(holder, part)
        assert str(read).lower() == value.lower()
        assert now.rstrip(")") != value


def test_the_trainer_is_helped_by_smaller_micro_batches_first() -> None:
    config = compose(Options(overrides=TEXT))
    error = WorkerError("actor[1].train ran out of memory in loss (x.py:3): DefaultCPUAllocator; resident: -")
    told = explained(error, config)
    assert isinstance(told, OutOfMemoryError)
    lines = str(told).splitlines()
    assert lines[0] == str(error)
    assert lines[2:] == [
        "  train.micro_batch_tokens=4096 (is 8192)",
        "  backend.precision=bf16 (is fp32)",
        "  backend.gradient_checkpointing=true (is false)",
    ]


def test_a_kill_for_want_of_memory_is_explained_and_other_deaths_stay_as_they_are() -> None:
    config = compose(Options(overrides=TEXT))
    killed = WorkerDied(f"rollout[0].generate failed: process device1 (pid 7) {KILLED}", worker="rollout[0]")
    assert "rollout=hf rollout.max_running=128 (is 256)" in str(explained(killed, config))
    other = WorkerDied("rollout[0].generate failed: process device1 (pid 7) was killed by SIGSEGV")
    assert explained(other, config) is other
    assert "the driver ran out of memory" in str(explained(MemoryError(), config))
