"""Claim: saving a checkpoint stops training for less than a tenth of the time that a blocking save takes.

One process trains a model with AdamW and saves as runs do. Beside it, in turn: `torch.distributed.checkpoint`
(DCP) saves the same tensors, blocking and by its `async_save`, to the same disk and synced as well. Keys:

- `stall_over_blocking`: how long training stands still for a save (the call, and what the next optimizer step
  waits for the copy), over DCP's blocking save; a forward and backward pass lies between the two;
- `worst_stall_over_blocking`: the same where the optimizer step follows at once, so that all of the copy is
  waited for;
- `async_peer_over_blocking`: DCP's `async_save`, which returns when it has its copy, over its blocking save;
- `blocking_over_blocking_peer`: our own save with `checkpoint.background=false`, over DCP's;
- `slowdown_while_writing`: training steps while the disk is written, over steps alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.distributed.checkpoint as dcp
from common import finish, say
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_backend_fsdp.trainer import FSDPTrainer
from torch import Tensor, nn

from rlinf_core.api import (
    LoRAConfig,
    LossTerms,
    Model,
    OptimizerConfig,
    PolicyOutputs,
    TrainBatch,
    TrainerContext,
    Want,
)
from rlinf_core.roles.saving import Part, Staged
from rlinf_core.run.checkpoint import CheckpointStore
from rlinf_core.run.saving import Saving
from rlinf_core.types import Experience, Sampling

WIDTH = 1024
ROWS, TOKENS = 4, 64
LOGPROBS: frozenset[Want] = frozenset({"logprobs"})


class Tower(Model):
    """Square layers; the mean of what comes out stands for a log-probability."""

    layers = 1

    def module(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(self.layers)))

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        raise ValueError("the benchmark makes its own inputs")

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        return PolicyOutputs(module(inputs["x"]).mean(-1))

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        raise ValueError("the benchmark exports nothing")


class Alone:
    """The crew of a run with one worker, in this process."""

    def __init__(self, trainer: FSDPTrainer) -> None:
        self.trainer = trainer
        self.part: Part | None = None

    def stage_save(self, *, background: bool) -> dict[str, list[Staged]]:
        self.part = Part(self.trainer, 0, background=background)
        return {"actor": [Staged(self.part.size, {})]}

    def write_save(self, folder: Path, listing: str) -> list[Path]:
        self.part.write(folder / "actor", folder / f"{listing}actor-0")
        return [folder / f"{listing}actor-0"]

    def check_save(self) -> None:
        self.part.check()

    def finish_save(self) -> None:
        self.part.finish()


class Measure:
    """A trainer, its state, and what the phases of a step take."""

    def __init__(self, layers: int, folder: Path) -> None:
        model = Tower(None)
        model.layers = layers
        self.trainer = FSDPBackend(FSDPConfig()).build(
            model, OptimizerConfig(lr=1e-4), LoRAConfig(), TrainerContext(total_steps=10**6)
        )
        self.folder = folder
        mask_BT = torch.ones(ROWS, TOKENS, dtype=torch.bool)
        x_BTF = torch.randn(ROWS, TOKENS, WIDTH)
        self.batch = TrainBatch({"x": x_BTF}, mask_BT, mask_BT.float(), torch.zeros(mask_BT.shape))
        self.crew: Any = Alone(self.trainer)
        self.steps = 0

    def accumulate(self) -> None:
        self.trainer.accumulate(self.batch, lambda out, _: LossTerms(-out.logprobs_BT.sum()), LOGPROBS)

    def step(self) -> None:
        self.accumulate()
        self.trainer.step(float(ROWS * TOKENS))

    def saving(self, background: bool) -> Saving:
        store = CheckpointStore(self.folder / "ours", keep=1)
        return Saving(store, self.crew, background=background, told=lambda step, path: None)

    def state(self) -> dict[str, Tensor]:
        return self.trainer._state()

    def timed_step(self) -> float:
        """Seconds of a training step."""
        began = time.perf_counter()
        self.step()
        return time.perf_counter() - began

    def stall(self, *, at_once: bool) -> tuple[float, list[float]]:
        """Seconds that training stands still for a save, and those of steps until all is written."""
        if at_once:
            self.accumulate()
        began = time.perf_counter()
        over = self.ours()
        stopped = time.perf_counter() - began
        if not at_once:
            self.accumulate()
        began = time.perf_counter()
        self.trainer._stage.settle()  # what the optimizer step begins with
        stopped += time.perf_counter() - began
        self.trainer.step(float(ROWS * TOKENS))
        beside = []
        while not over():
            beside.append(self.timed_step())
        return stopped, beside

    def ours(self) -> Callable[[], bool]:
        self.steps += 1
        saving = self.saving(background=True)
        saving.save(self.steps, {})

        def over() -> bool:
            saving.check()
            return saving.store.latest_step() == self.steps

        return over

    def ours_blocking(self) -> float:
        self.steps += 1
        began = time.perf_counter()
        self.saving(background=False).save(self.steps, {})
        return time.perf_counter() - began

    def peer(self) -> float:
        path = self._fresh()
        began = time.perf_counter()
        dcp.save(self.state(), storage_writer=dcp.FileSystemWriter(path), no_dist=True)
        return time.perf_counter() - began

    def peer_async(self) -> float:
        path = self._fresh()
        began = time.perf_counter()
        future = dcp.async_save(self.state(), storage_writer=dcp.FileSystemWriter(path), no_dist=True)
        seconds = time.perf_counter() - began
        future.result()
        return seconds

    def _fresh(self) -> Path:
        path = self.folder / "peer"
        shutil.rmtree(path, ignore_errors=True)
        return path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=48, help="of a million parameters each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measure = Measure(given.layers, Path(folder))
        found = rounds(measure, given.rounds)
    size = sum(tensor.nbytes for tensor in measure.state().values())
    finish(result(found, size), "torch", "safetensors")


def rounds(measure: Measure, count: int) -> dict[str, list[float]]:
    """Everything in turn, after a round that is not counted."""
    found: dict[str, list[float]] = {}
    for number in range(count + 1):
        stall_s, beside = measure.stall(at_once=False)
        row = {
            "step": statistics.median(measure.timed_step() for _ in range(4)),
            "stall": stall_s,
            "worst_stall": measure.stall(at_once=True)[0],
            "blocking": measure.ours_blocking(),
            "peer": measure.peer(),
            "async_peer": measure.peer_async(),
        }
        if beside:
            row["beside"] = statistics.mean(beside)
        say(f"round {number}: " + "  ".join(f"{name} {seconds:.3f} s" for name, seconds in row.items()))
        for name, seconds in row.items() if number else ():
            found.setdefault(name, []).append(seconds)
    return found


def result(found: Mapping[str, Sequence[float]], size: int) -> dict[str, Any]:
    """Ratios of medians."""
    seconds = {name: statistics.median(values) for name, values in found.items()}
    peer = seconds["peer"]
    shares = {
        "stall_over_blocking": seconds["stall"] / peer,
        "worst_stall_over_blocking": seconds["worst_stall"] / peer,
        "async_peer_over_blocking": seconds["async_peer"] / peer,
        "blocking_over_blocking_peer": seconds["blocking"] / peer,
        "slowdown_while_writing": seconds.get("beside", seconds["step"]) / seconds["step"],
    }
    return {
        **{name: round(share, 4) for name, share in shares.items()},
        "state_mb": round(size / 1e6),
        **{f"{name}_s": round(value, 4) for name, value in seconds.items()},
    }


if __name__ == "__main__":
    main()
