"""Claim: a simulator in a process of another Python environment is stepped at most 10 % slower than in this.

Eight environments of a MuJoCo task that show their state and a picture of 128 x 128: a step is one action
of each, its physics and its picture. The other environment is a virtual environment, built as by
`rlinf plugins install NAME --isolated`, with the packages' releases of this one, so that both sides do the
same work. One process steps all eight, and rounds of both alternate.

Keys: `overhead` ((isolated - here) / here, the median over rounds), `step_here_ms`, `step_isolated_ms`, and
`transport_us`: a batch with nothing to compute, whose pictures are copied into shared memory once.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import CACHE, finish, say

from rlinf_core.api import Simulator
from rlinf_core.isolation import build
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import Isolation, NoConfig, plugins
from rlinf_core.plugins.specs import PluginSpec
from rlinf_core.pool.simulator import SimulatorPool

HERE = Path(__file__).resolve().parent
SIMULATOR = "gymnasium"
TASK = {"id": "HalfCheetah-v5", "images": True, "image_size": 128}
LOCK = CACHE / "isolation" / "isolated_versions"  # a package, as that of a plugin
ROOTS = ("gymnasium", "mujoco", "imageio", "packaging")
ENVS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="of each side in a round")
    parser.add_argument("--batches", type=int, default=2000, help="with nothing to compute")
    asked = parser.parse_args()
    spec = with_environment(plugins().get("simulators", SIMULATOR))
    build(spec, say=say)
    program = Program.of(spec, "always")
    here, there = measure(spec, program, asked.rounds, asked.steps)
    overhead = statistics.median(after / before - 1 for before, after in zip(here, there, strict=True))
    result = {
        "overhead": overhead,
        "step_here_ms": statistics.median(here) * 1e3,
        "step_isolated_ms": statistics.median(there) * 1e3,
        "transport_us": transport(program, asked.batches) * 1e6,
        "environments": ENVS,
        "rounds": asked.rounds,
    }
    say("  ".join(f"{key} {value:.4g}" for key, value in result.items()))
    finish(result, "rlinf-core", "numpy", "gymnasium", "mujoco")


def with_environment(spec: PluginSpec) -> PluginSpec:
    """The plugin with an environment of this one's releases, kept beside the other caches."""
    LOCK.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}=={importlib.metadata.version(name)}" for name in needed(ROOTS)]
    (LOCK / "lock.txt").write_text("\n".join([*lines, ""]))
    sys.path.append(str(LOCK.parent))
    os.environ["RLINF_ENVIRONMENTS"] = str(CACHE / "environments")
    isolation = Isolation(lock=f"{LOCK.name}/lock.txt", imports=ROOTS, variables={"MUJOCO_GL": "osmesa"})
    return replace(spec, isolation=isolation)


def needed(names: Sequence[str]) -> list[str]:
    """These packages and all that they need, as installed here."""
    from packaging.requirements import Requirement

    found: dict[str, None] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        asked = waiting.pop()
        if asked.name.lower() in found:
            continue
        found[asked.name.lower()] = None
        for text in importlib.metadata.requires(asked.name) or []:
            one = Requirement(text)
            extras = asked.extras or {""}
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(one)
    return sorted(found)


def measure(spec: PluginSpec, program: Program, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of a step in this process and in the other, round by round."""
    os.environ.setdefault("MUJOCO_GL", "osmesa")
    config = spec.config(**TASK)
    own: Simulator = spec.load()(config, ENVS, 0)
    pool = SimulatorPool(config, ENVS, 0, name=spec.name, target=spec.target, program=program)
    here, there = [], []
    with closing(own), closing(pool):
        for number in range(rounds + 1):
            pairs = [(own, here), (pool, there)]
            for simulator, times in pairs if number % 2 else pairs[::-1]:
                times.append(seconds(simulator, steps))
            say(f"round {number}: {here[-1] * 1e3:.2f} ms here, {there[-1] * 1e3:.2f} ms isolated")
    return here[1:], there[1:]


def transport(program: Program, batches: int) -> float:
    """Seconds of a batch of pictures that are always the same."""
    path = os.pathsep.join([program.variables["PYTHONPATH"], str(HERE)])
    program = replace(program, variables={**program.variables, "PYTHONPATH": path})
    pool = SimulatorPool(
        NoConfig(), ENVS, 0, name="still", target="still_pictures:StillPictures", program=program
    )
    with closing(pool):
        return min(seconds(pool, batches // 10) for _ in range(10))


def seconds(simulator: Simulator, steps: int) -> float:
    """Of one step, on average; the observation's first and last numbers are looked at."""
    shape = simulator.action_space.shape
    actions = np.random.default_rng(0).uniform(-1, 1, (ENVS, 1, *shape)).astype(np.float32)
    simulator.reset(range(ENVS))
    began = time.perf_counter()
    for _ in range(steps):
        pictures = simulator.step(actions).observation.images["main"]
        _ = pictures[0, 0, 0], pictures[-1, -1, -1]
    return (time.perf_counter() - began) / steps


@contextmanager
def closing(simulator: Simulator) -> Iterator[None]:
    try:
        yield
    finally:
        simulator.close()


if __name__ == "__main__":
    main()
