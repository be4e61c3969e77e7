"""How long the parts of LIBERO episodes take: one JSON object, by the Python of LIBERO's environment.

`rates` are environment steps a second of elapsed and of processor time, by what is shown.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from rlinf_sim_libero.config import LiberoConfig
from rlinf_sim_libero.simulator import LiberoSimulator

KINDS = {
    "state": {"cameras": ()},
    "two pictures of 128": {"image_size": 128},
    "two pictures of 256": {"image_size": 256},
    "two pictures of 256 with shadows": {"image_size": 256, "shadows": True},
}
STEPS = 20


def resident_mb() -> int:
    """Memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


def main() -> None:
    """One task, each kind in turn."""
    found: dict[str, object] = {}
    rates = {}
    for name, options in KINDS.items():
        simulator = LiberoSimulator(LiberoConfig(task=0, **options), 1, 0)  # type: ignore[arg-type]
        began = time.perf_counter()
        simulator.reset([0])
        found.setdefault("first_reset_s", round(time.perf_counter() - began, 2))
        began = time.perf_counter()
        simulator.reset([1])
        found.setdefault("reset_with_settling_s", round(time.perf_counter() - began, 3))
        began = time.perf_counter()
        simulator.reset([0])
        found.setdefault("reset_s", round(time.perf_counter() - began, 4))
        actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, 1, 1, 7)).astype(np.float32)
        began, worked = time.perf_counter(), time.process_time()
        for action in actions:
            simulator.step(action)
        spent = (time.perf_counter() - began, time.process_time() - worked)
        rates[name] = [round(STEPS / each, 1) for each in spent]
        found[f"resident_mb after {name}"] = resident_mb()
        simulator.close()
    print(json.dumps({**found, "rates": rates}))


if __name__ == "__main__":
    main()
