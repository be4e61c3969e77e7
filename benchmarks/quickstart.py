"""Claim: on two cores the quickstart learns in front of the user, whatever the seed, in under two minutes.

`accuracy_before_max` and `accuracy_after_min` are the worst of all seeds (held-out, sampled), `seconds_max`
the longest run, from the command to the export.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from common import finish, run, say


def learn(seed: int, folder: Path, *arguments: str) -> tuple[float, float, float]:
    """Accuracy before and after one run of `rlinf train` with these arguments, and its seconds."""
    output = folder / str(seed)
    command = [str(Path(sys.executable).parent / "rlinf"), "train", *arguments]
    began = time.perf_counter()
    run([*command, "--seed", str(seed), "--output", str(output)], threads=1, log=folder / f"{seed}.log")
    seconds = time.perf_counter() - began
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    found = [record["eval/accuracy"] for record in records if "eval/accuracy" in record]
    say(f"seed {seed}: {found[0]:.1%} -> {found[-1]:.1%} in {seconds:.0f} s")
    return found[0], found[-1], seconds


def measure(description: str | None, seeds: int, *arguments: str) -> None:
    """Train every seed, one after the other, and print the line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=seeds)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [learn(seed, Path(folder), *arguments) for seed in range(1, args.seeds + 1)]
    result = {
        "seeds": len(runs),
        "accuracy_before_max": round(max(before for before, _, _ in runs), 4),
        "accuracy_after_min": round(min(after for _, after, _ in runs), 4),
        "seconds_max": round(max(seconds for _, _, seconds in runs), 1),
    }
    finish(result, "rlinf-core", "torch", "transformers")


if __name__ == "__main__":
    measure(__doc__, 5, "--algo", "grpo", "--backend", "fsdp")
