"""Claim: a tiny token VLA learns from pictures on two cores: cloned from an expert, PPO and GRPO each raise
its held-out success by at least 25 points to above 80 %, within eight minutes in all.

The recipes `tiny-vla-ppo` and `tiny-vla-grpo` on one recording. `ALGORITHM.success_before_max` is what
imitation alone reaches, `ALGORITHM.success_after_min` the end of the worst seed; `gain_min` is the smallest
rise, `seconds_max` the longest run with its imitation; `recording_seconds` comes on top once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, finish, run, say

RLINF = str(Path(sys.executable).parent / "rlinf")
RECORD = ("--episodes", "4000", "--envs", "128", "--speed", "0.25", "1.0", "--noise", "0.1")
PATIENT = "simulator.max_episode_steps=20"  # slow episodes succeed too, and show what slowness is
ALGORITHMS = ("ppo", "grpo")
FIGURE = ROOT / "docs" / "assets" / "tiny-vla.svg"
COLOURS = {"ppo": "#1f77b4", "grpo": "#d62728"}

Curve = list[tuple[int, float]]  # step and success


def learn(name: str, seed: int, demos: Path, folder: Path) -> tuple[Curve, float]:
    """The evaluations of one run, and its seconds."""
    output, log = folder / f"{name}-{seed}", folder / f"{name}-{seed}.log"
    began = time.perf_counter()
    told = ("--seed", str(seed), f"warm_start.demonstrations={demos}", "--output", str(output))
    run([RLINF, "train", "--recipe", f"tiny-vla-{name}", *told], threads=1, log=log)
    seconds = time.perf_counter() - began
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    curve = [(record["step"], record["eval/success"]) for record in records if "eval/success" in record]
    say(f"{name}, seed {seed}: {curve[0][1]:.1%} -> {curve[-1][1]:.1%} in {seconds:.0f} s")
    return curve, seconds


def draw(curves: dict[str, list[Curve]], path: Path) -> None:
    """One line a run."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "rlinf"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, found in curves.items():
        for number, curve in enumerate(found):
            label = None if number else name
            axes.plot(*zip(*curve, strict=True), label=label, color=COLOURS[name], marker="o", markersize=3)
    axes.set(xlabel="step, after imitation", ylabel="held-out success", ylim=(0, 1))
    axes.axhline(0.8, color="grey", linewidth=0.8, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Record, train by both algorithms with every seed, draw, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demos, began = folder / "demos", time.perf_counter()
        recording = ("demos", "record", "--recipe", "tiny-vla-grpo", *RECORD, "--output", str(demos), PATIENT)
        run([RLINF, *recording], threads=1, log=folder / "record.log")
        recorded = time.perf_counter() - began
        runs = {name: [learn(name, seed, demos, folder) for seed in range(args.seeds)] for name in ALGORITHMS}
    curves = {name: [curve for curve, _ in found] for name, found in runs.items()}
    draw(curves, args.figure)
    result: dict[str, float] = {"seeds": args.seeds}
    for name, found in curves.items():
        result[f"{name}.success_before_max"] = max(curve[0][1] for curve in found)
        result[f"{name}.success_after_min"] = min(curve[-1][1] for curve in found)
    result["gain_min"] = min(curve[-1][1] - curve[0][1] for found in curves.values() for curve in found)
    result["seconds_max"] = round(max(seconds for found in runs.values() for _, seconds in found))
    result["recording_seconds"] = round(recorded)
    finish(result, "rlinf-core", "torch", "transformers")


if __name__ == "__main__":
    main()
