"""Claim: every algorithm learns the embedded task from one command that differs in one word.

`NAME.accuracy_after_min` is the worst of all seeds (held-out, sampled), `accuracy_after_min` the worst of
all algorithms. The curves are drawn into `--figure`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean

from common import ROOT, finish, run, say

ALGORITHMS = ("ppo", "grpo", "dapo", "reinforce_pp")
COLOURS = {"ppo": "#4477aa", "grpo": "#228833", "dapo": "#ccbb44", "reinforce_pp": "#ee6677"}
FIGURE = ROOT / "docs" / "assets" / "algorithms.svg"
Curve = list[tuple[int, float]]  # step, held-out accuracy


def learn(name: str, seed: int, folder: Path) -> Curve:
    """The evaluations of one run."""
    output = folder / f"{name}-{seed}"
    command = [str(Path(sys.executable).parent / "rlinf"), "train", "--algo", name, "--backend", "fsdp"]
    log = folder / f"{name}-{seed}.log"
    run([*command, "--seed", str(seed), "--output", str(output)], threads=1, log=log)
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    curve = [(record["step"], record["eval/accuracy"]) for record in records if "eval/accuracy" in record]
    seconds = sum(record.get("time/step", 0.0) for record in records)
    say(f"{name}, seed {seed}: {curve[0][1]:.1%} -> {curve[-1][1]:.1%}, {seconds:.0f} s of steps")
    return curve


def draw(curves: dict[str, list[Curve]], path: Path) -> None:
    """One line an algorithm, the mean of its seeds, and their range."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "rlinf"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, found in curves.items():
        steps = [step for step, _ in found[0]]
        accuracies = [[curve[i][1] for curve in found] for i in range(len(steps))]
        colour = COLOURS.get(name)
        axes.plot(steps, [mean(values) for values in accuracies], label=name, color=colour)
        low, high = [min(values) for values in accuracies], [max(values) for values in accuracies]
        axes.fill_between(steps, low, high, alpha=0.15, color=colour, linewidth=0)
    axes.set(xlabel="step", ylabel="held-out accuracy", ylim=(0, 1))
    axes.axhline(0.85, color="grey", linewidth=0.8, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Train every algorithm with every seed, one after the other; draw, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algos", nargs="+", default=ALGORITHMS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    args = parser.parse_args()
    seeds = range(1, args.seeds + 1)
    with tempfile.TemporaryDirectory() as folder:
        curves = {name: [learn(name, seed, Path(folder)) for seed in seeds] for name in args.algos}
    draw(curves, args.figure)
    worst = {name: min(curve[-1][1] for curve in found) for name, found in curves.items()}
    result = {f"{name}.accuracy_after_min": round(accuracy, 4) for name, accuracy in worst.items()}
    before = max(curve[0][1] for found in curves.values() for curve in found)
    result |= {
        "seeds": args.seeds,
        "accuracy_before_max": round(before, 4),
        "accuracy_after_min": round(min(worst.values()), 4),
    }
    finish(result, "rlinf-core", "torch", "transformers")


if __name__ == "__main__":
    main()
