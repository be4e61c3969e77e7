"""Aim: PPO in a simulator with rlinf makes 1.5 times the steps a second of Stable-Baselines3, and 1.3 times
those of a loop in one file as CleanRL has it, and learns as well.

All three train the same network (two hidden layers of 64, values apart) on Reacher-v5 with the same settings,
in alternating rounds of other seeds, on all cores. Peers run at the faster of environments in their own
process and in others, found first. Keys: `steps_per_s_over_sb3`, `steps_per_s_over_cleanrl` (medians of
steps, start left out); `return_rlinf`, `return_sb3`, `return_cleanrl` (mean return of episodes over the last
fifth, which `returns_spread` is to be held against: the largest spread between one side's seeds). Measure on
an idle machine: with others at work, a side of two processes gets more of it than one of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from common import CACHE, PEER_PYTHON, ROOT, finish, run, say

SKIPPED = 2  # first iterations of a run: warming up
EPISODE = 50  # steps of an episode of Reacher
JOB: dict[str, Any] = {
    "id": "Reacher-v5",
    "envs": 8,
    "steps": 2000,
    "mini_batches": 8,
    "epochs": 8,
    "lr": 7e-4,
    "gamma": 0.97,
    "entropy_coef": 0.001,
    "grad_clip": 0.5,
    "log_std": -0.3,
}
Result = dict[str, list[float]]


def peer(name: str, processes: bool, seed: int, iterations: int) -> Result:
    """A peer's run."""
    files = CACHE / "ppo-job.json", CACHE / "ppo-result.json"
    asked = {"peer": name, "processes": processes, "seed": seed, "iterations": iterations, "threads": 1}
    files[0].write_text(json.dumps({**JOB, **asked}))
    script = str(ROOT / "benchmarks" / "peers" / "ppo.py")
    run([str(PEER_PYTHON), script, str(files[0]), str(files[1])], 1, CACHE / "ppo.log")
    result: Result = json.loads(files[1].read_text())
    return result


def ours(seed: int, iterations: int) -> Result:
    """Our run, through the command that users type."""
    output = CACHE / "ppo-run"
    shutil.rmtree(output, ignore_errors=True)
    overrides = {
        "simulator.id": JOB["id"],
        "model.init_log_std": JOB["log_std"],
        "algo.gamma": JOB["gamma"],
        "algo.value_coef": 0.5,
        "algo.entropy_coef": JOB["entropy_coef"],
        "train.prompts_per_step": JOB["steps"] // EPISODE,
        "train.mini_batches": JOB["mini_batches"],
        "train.update_epochs": JOB["epochs"],
        "train.steps": iterations,
        "optimizer.lr": JOB["lr"],
        "optimizer.eps": 1e-5,
        "optimizer.grad_clip": JOB["grad_clip"],
        "eval.every": 0,
        "eval.samples": 1,
        "checkpoint.every": 0,
        "checkpoint.export": "false",
        "placement": "{actor: 0, environment: all, rollout: all}",  # a small policy trains fastest alone
    }
    command = [
        str(Path(sys.executable).parent / "rlinf"),
        "train",
        "--algo",
        "ppo",
        "--simulator",
        "gymnasium",
    ]
    command += ["--model", "mlp_policy", "--seed", str(seed), "--output", str(output)]
    run([*command, *(f"{key}={value}" for key, value in overrides.items())], 1, CACHE / "ppo-ours.log")
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "time/step" in record]
    return {
        "seconds": [record["time/step"] for record in steps],
        "returns": [record["train/reward"] for record in steps],
    }


def pace(result: Result) -> float:
    """Environment steps a second, by the median iteration after warming up."""
    return float(JOB["steps"] / statistics.median(result["seconds"][SKIPPED:]))


def learned(results: list[Result]) -> list[float]:
    """Mean return over the last fifth, of each seed."""
    return [statistics.mean(each["returns"][-max(1, len(each["returns"]) // 5) :]) for each in results]


def main() -> None:
    """Run the comparison; the last line is one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not PEER_PYTHON.exists():
        raise SystemExit("the peers are not installed; `make bench` installs them")
    CACHE.mkdir(parents=True, exist_ok=True)
    apart = {}
    for name in ("sb3", "cleanrl"):
        paces = {where: pace(peer(name, where, 0, SKIPPED + 3)) for where in (False, True)}
        apart[name] = paces[True] > paces[False]
        say(f"{name}: {paces[False]:.0f} steps/s in one process, {paces[True]:.0f} with one an environment")
    results: dict[str, list[Result]] = {"rlinf": [], "sb3": [], "cleanrl": []}
    for seed in range(args.rounds):
        for name, found in results.items():
            found.append(
                ours(seed, args.iterations)
                if name == "rlinf"
                else peer(name, apart[name], seed, args.iterations)
            )
            end = learned(found[-1:])[0]
            say(f"round {seed}: {name} {pace(found[-1]):.0f} steps/s, return {end:.2f}")
    paces = {name: statistics.median(map(pace, found)) for name, found in results.items()}
    ends = {name: learned(found) for name, found in results.items()}
    finish(
        {
            "steps_per_s_over_sb3": paces["rlinf"] / paces["sb3"],
            "steps_per_s_over_cleanrl": paces["rlinf"] / paces["cleanrl"],
            **{f"steps_per_s_{name}": paces[name] for name in results},
            **{f"return_{name}": statistics.mean(ends[name]) for name in results},
            "returns_spread": max(max(end) - min(end) for end in ends.values()),
            "load": os.getloadavg()[0],
        },
        "torch",
        "gymnasium",
        "mujoco",
    )


if __name__ == "__main__":
    main()
