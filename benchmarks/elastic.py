"""Claim: a run that trains changes its number of ranks in a twentieth of the time that saving, stopping and
starting again takes, with the same bits afterwards and the same losses.

A policy of 0.2 billion float32 parameters with AdamW state trains on the CPU, one thread a rank: 1 -> 2 -> 1
ranks, then 2 -> 4 -> 2. Beside each change, in the same run: the state is saved as a checkpoint is, processes
start with the other number of ranks, build their workers and load it, and stop. A run that never scaled gives
the losses. Keys:

- `restart_over_pause`: the restart's time over the pause, the least of the four changes;
- `pause_s`, `restart_s`: medians over the changes; `pause_over_memcpy`: the pause over what copying the moved
  bytes once takes, the median of the changes;
- `state_identical`: whether every parameter and every optimizer tensor has the same bits after every change;
- `loss_rel_diff`: the largest relative difference of a loss from that of the run that never scaled;
- `moved_gb`: gigabytes that changed owner, of all changes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from common import finish, say
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM
from safetensors import safe_open

from rlinf_core.api import HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.flows.flow import merge_reports
from rlinf_core.run.compose import make_source
from rlinf_core.run.crew import Crew
from rlinf_core.run.seats import DeviceHosts, Hosts
from rlinf_core.schedule.plan import Assignment, Plan

LAYERS = 16  # of 12.6 million parameters each
COPIED = 2**28  # bytes of the memcpy measure
WORDS = (
    "data=sort_digits",
    "sampling.max_new_tokens=8",
    "trackers=[]",
    "reward=exact",
    "reward_pool.workers=0",
    "train.samples_per_step=16",
    "algo=grpo",
    "algo.group_size=4",
    "optimizer.lr=1e-4",
    "backend.sharding=full",
    "warm_start.batch_size=16",
    "warm_start.steps=100",
)


@dataclass
class Measured:
    """One change, and the restart beside it."""

    before: int
    after: int
    pause_s: float
    restart_s: float
    moved_bytes: int
    identical: bool


class Trainers:
    """A run's groups: the actor has some ranks, and a rollout sits on the first device."""

    def __init__(self, config: RunConfig, ranks: int) -> None:
        self.engine = LocalEngine(LocalConfig())
        specs = [HostSpec(f"device{number}") for number in range(4)]
        (reward,) = self.engine.start([HostSpec("reward")])
        self.crew = Crew(config, self.engine, Hosts(DeviceHosts(self.engine, specs), {"reward": reward}))
        self.crew.place(plan(ranks))
        self.source = make_source(config)
        self.losses: list[float] = []

    def step(self) -> None:
        """One optimizer step on demonstrations."""
        reports = self.source.imitate(self.crew.groups["actor"], len(self.losses), 1).wait()
        self.losses.append(merge_reports(reports)["train/imitation_loss"])

    def scale(self, ranks: int) -> tuple[float, int]:
        """Another number of ranks; seconds that training stood still, and bytes that moved."""
        change = self.crew.change(plan(ranks))
        change.prepare()
        began = time.perf_counter()
        moved = change.carry_out()
        pause = time.perf_counter() - began
        change.tidy()
        self.crew.hosts.keep(range(ranks))
        return pause, sum(each.moved_bytes for each in moved)

    def save(self, folder: Path) -> Mapping[str, object]:
        """As a checkpoint is written, durable."""
        return self.crew.saved(folder)


def plan(ranks: int) -> Plan:
    return Plan({"rollout": Assignment((0,)), "actor": Assignment(tuple(range(ranks)))})


@contextmanager
def trainers(config: RunConfig, ranks: int) -> Iterator[Trainers]:
    made = Trainers(config, ranks)
    try:
        yield made
    finally:
        made.engine.stop()


def make_model(folder: Path, layers: int) -> None:
    """A Llama of that many layers with random weights, as a directory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    HFLM(HFLMConfig(preset="char-llama")).export_architecture(folder)
    path = folder / "config.json"
    known = json.loads(path.read_text())
    sizes = {"hidden_size": 1024, "intermediate_size": 2730, "num_attention_heads": 16}
    known |= sizes | {"num_key_value_heads": 16, "head_dim": 64, "num_hidden_layers": layers}
    path.write_text(json.dumps(known))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)


def restart(config: RunConfig, folder: Path, algorithm: Mapping[str, object], ranks: int) -> float:
    """Seconds until new processes with that many ranks can make a step, and until they have stopped."""
    began = time.perf_counter()
    with trainers(config, ranks) as peer:
        peer.crew.load(folder, algorithm)
    return time.perf_counter() - began


def whole(folder: Path) -> dict[str, torch.Tensor]:
    """The saved state, put together from what the ranks wrote."""
    found: dict[str, torch.Tensor] = {}
    for file in sorted((folder / "actor").glob("*.safetensors")):
        with safe_open(file, "pt") as handle:
            known = handle.metadata()
            shapes = json.loads(known["rlinf"])["shapes"]
            offsets = json.loads(known["DCP_SHARDING_INFO"])
            for name in handle.keys():  # noqa: SIM118  # it is no mapping
                if name.startswith("random."):
                    continue
                part = handle.get_tensor(name)
                target = found.setdefault(name, torch.zeros(shapes[name], dtype=part.dtype))
                begin = offsets[name]["saved_offsets"]
                target[tuple(slice(a, a + size) for a, size in zip(begin, part.shape, strict=True))] = part
    return found


def same(one: Path, other: Path) -> bool:
    ours, theirs = whole(one), whole(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def measure(run: Trainers, config: RunConfig, ranks: int, folder: Path) -> Measured:
    """One change, the restart beside it, and a comparison of all bits."""
    before = run.crew.groups["actor"].size
    one, other = folder / "before", folder / "after"
    began = time.perf_counter()
    algorithm = run.save(one)
    saved = time.perf_counter() - began
    pause, moved = run.scale(ranks)
    run.save(other)
    identical = same(one, other)
    restarted = saved + restart(config, one, algorithm, ranks)
    shutil.rmtree(one)
    shutil.rmtree(other)
    found = Measured(before, ranks, pause, restarted, moved, identical)
    say(
        f"{before} -> {ranks} ranks: pause {pause:.2f} s ({moved / 1e9:.2f} GB moved), "
        f"restart {restarted:.1f} s, {restarted / pause:.1f}x; same bits: {identical}"
    )
    return found


def memcpy_gb_per_s() -> float:
    """Of memory that was touched."""
    source, target = np.ones(COPIED, dtype=np.uint8), np.zeros(COPIED, dtype=np.uint8)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        times.append(time.perf_counter() - began)
    return COPIED / 1e9 / statistics.median(times)


def changes(config: RunConfig, counts: tuple[int, ...], folder: Path) -> tuple[list[Measured], list[float]]:
    with trainers(config, counts[0]) as run:
        run.step()
        found = []
        for ranks in counts[1:]:
            found.append(measure(run, config, ranks, folder))
            run.step()
        return found, run.losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=LAYERS)
    layers = parser.parse_args().layers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", layers)
        words = (*WORDS, "model=hf_lm", f"model.path={folder / 'model'}")
        config = replace(compose(Options(overrides=words)), output=str(folder / "run"))
        found: list[Measured] = []
        gaps = []
        with trainers(config, 1) as steady:
            for _ in range(3):
                steady.step()
        for counts in ((1, 2, 1), (2, 4, 2)):
            measured, losses = changes(config, counts, folder)
            found += measured
            gaps += [abs(a - b) / abs(b) for a, b in zip(losses, steady.losses, strict=True)]
            say(f"losses {losses}, never scaled {steady.losses}")
    speed = memcpy_gb_per_s()
    finish(
        {
            "restart_over_pause": min(each.restart_s / each.pause_s for each in found),
            "loss_rel_diff": max(gaps),
            "state_identical": all(each.identical for each in found),
            "pause_s": statistics.median(each.pause_s for each in found),
            "restart_s": statistics.median(each.restart_s for each in found),
            "pause_over_memcpy": statistics.median(
                each.pause_s / (each.moved_bytes / 1e9 / speed) for each in found
            ),
            "moved_gb": sum(each.moved_bytes for each in found) / 1e9,
            "memcpy_gb_per_s": speed,
            "parameters": 12.6e6 * layers,
        },
        "rlinf-core",
        "torch",
    )


if __name__ == "__main__":
    main()
