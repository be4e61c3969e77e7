"""Ranks that die while state moves from memory to memory: who it was is what is told."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import WorkerDied
from rlinf_core.run.moving import TrainedMove

sys.path.insert(0, str(Path(__file__).parent))
from scaled_crew import Job, Machine, plan

ONE, TWO = plan({"rollout": 1, "actor": 1}), plan({"rollout": 1, "actor": 2})


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, 2)
    try:
        yield made
    finally:
        made.engine.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="needs process_vm_readv")
@pytest.mark.parametrize(("before", "after", "dies"), [(TWO, ONE, 1), (ONE, TWO, 0)], ids=["leaves", "stays"])
def test_who_dies_before_others_have_taken_its_part_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, before: Any, after: Any, dies: int
) -> None:
    """A rank shows what it has, all meet, and it is killed."""
    job = Job(machine.crew(machine.text("backend.sharding=full")), before)
    job.step()
    change = job.prepared(after)
    victim = job.crew.groups["actor"].call("tell").wait()[dies].mark.process
    of_rank, killed = TrainedMove._for, list[int]()

    def killing(self: TrainedMove, rank: int, given: Any) -> Any:
        if not killed:
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)
            while Path(f"/proc/{victim}/maps").read_bytes():  # its memory is gone
                time.sleep(0.001)
        return of_rank(self, rank, given)

    monkeypatch.setattr(TrainedMove, "_for", killing)
    with pytest.raises(WorkerDied, match=rf"actor\[{dies}\]|device{dies}"):
        job.carry_out(change)
