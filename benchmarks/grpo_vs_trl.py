"""Claim: GRPO with rlinf takes at most half the time of TRL's GRPOTrainer on uneven responses.

Both train the same model on the same prompts with the same group size and token budget, on all cores, in
alternating rounds. TRL runs at the fastest of its settings of processes, threads and precision, found
first. Keys: `samples_per_s_ratio` (natural lengths), `uniform_ratio` (all responses of one length),
`loss_abs_diff` (both losses on one identical batch).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import CACHE, PEER_PYTHON, ROOT, finish, run, say
from counting import prepare

SKIPPED = 3  # first steps of a run: warming up


@dataclass(frozen=True)
class Setting:
    """How TRL runs."""

    processes: int
    threads: int
    bf16: bool


SETTINGS = [
    Setting(processes, threads, bf16)
    for processes, threads in ((1, 1), (1, 2), (2, 1))
    for bf16 in (False, True)
]


def job(args: argparse.Namespace, uniform: bool, steps: int) -> dict[str, Any]:
    """What both sides are asked to do."""
    model, data = prepare()
    return {
        "model": str(model),
        "data": str(data),
        "output": str(CACHE / "trl-run"),
        "prompts": args.prompts,
        "group_size": args.group_size,
        "max_new_tokens": 32 if uniform else 64,
        "uniform": uniform,
        "steps": steps,
        "lr": 1e-6,
    }


def trl(asked: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """TRL's run of a job."""
    files = CACHE / "trl-job.json", CACHE / "trl-result.json"
    files[0].write_text(json.dumps({**asked, "threads": setting.threads, "bf16": setting.bf16}))
    launch = [str(PEER_PYTHON)]
    if setting.processes > 1:
        launch += ["-m", "torch.distributed.run", "--nproc_per_node", str(setting.processes)]
        launch += ["--master_port", "29631"]
    script = str(ROOT / "benchmarks" / "peers" / "trl_grpo.py")
    run([*launch, script, str(files[0]), str(files[1])], setting.threads, CACHE / "trl.log")
    result: dict[str, Any] = json.loads(files[1].read_text())
    return result


def ours(asked: dict[str, Any]) -> dict[str, Any]:
    """Our run of a job, through the command that users type."""
    output = CACHE / "our-run"
    shutil.rmtree(output, ignore_errors=True)
    overrides = {
        "train.prompts_per_step": asked["prompts"],
        "algo.group_size": asked["group_size"],
        "sampling.max_new_tokens": asked["max_new_tokens"],
        "sampling.min_new_tokens": asked["max_new_tokens"] if asked["uniform"] else 0,
        "optimizer.lr": asked["lr"],
        "train.steps": asked["steps"],
        "eval.samples": 8,
        "eval.every": 0,
        "checkpoint.every": 0,
        "checkpoint.export": "false",
    }
    command = [str(Path(sys.executable).parent / "rlinf"), "train", "--algo", "grpo", "--backend", "fsdp"]
    command += ["--model", asked["model"], "--data", asked["data"]]
    command += ["--reward", f"{ROOT}/benchmarks/partial_credit.py:score"]
    command += ["--output", str(output), *(f"{key}={value}" for key, value in overrides.items())]
    run(command, 1, CACHE / "ours.log")
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "time/step" in record]
    return {
        "step_s": [record["time/step"] for record in steps],
        "mean_length": [record["train/response_length"] for record in steps],
        "reward": [record["train/reward"] for record in steps],
    }


def pace(result: dict[str, Any]) -> float:
    """Median step seconds after warming up."""
    return statistics.median(result["step_s"][SKIPPED:])


def about(result: dict[str, Any]) -> str:
    """Mean response length and reward, which must be alike on both sides."""
    length, reward = (statistics.mean(result[name]) for name in ("mean_length", "reward"))
    return f"length {length:.1f}, reward {reward:.2f}"


def best_setting(asked: dict[str, Any]) -> Setting:
    """TRL's fastest setting on this machine."""
    paces = {}
    for setting in SETTINGS:
        paces[setting] = pace(trl({**asked, "steps": SKIPPED + 4}, setting))
        say(f"  trl {setting}: {paces[setting] * 1e3:.0f} ms a step")
    return min(paces, key=lambda setting: paces[setting])


def compare(args: argparse.Namespace, uniform: bool) -> float:
    """TRL's step time over ours, medians over alternating rounds."""
    asked = job(args, uniform, args.steps)
    say(f"{'uniform' if uniform else 'natural'} lengths")
    setting = best_setting(asked)
    peer_paces, our_paces = [], []
    for number in range(args.rounds):
        peer, own = trl(asked, setting), ours(asked)
        peer_paces.append(pace(peer))
        our_paces.append(pace(own))
        say(
            f"  round {number}: trl {peer_paces[-1] * 1e3:.0f} ms ({about(peer)}), "
            f"rlinf {our_paces[-1] * 1e3:.0f} ms ({about(own)})"
        )
    return statistics.median(peer_paces) / statistics.median(our_paces)


def loss_difference(args: argparse.Namespace) -> float:
    """Difference of both sides' loss on one batch of uneven rows."""
    from grpo_loss import fixed_batch, our_loss

    asked = job(args, False, 1)
    batch = fixed_batch(Path(asked["model"]), rows=8)
    theirs = trl({**asked, "prompts": 1, "group_size": 8, "batch": batch}, Setting(1, 1, False))["loss"]
    mine = our_loss(Path(asked["model"]), batch)
    say(f"loss: trl {theirs:.8f}, rlinf {mine:.8f}")
    return abs(theirs - mine)


def main() -> None:
    """Run the comparison; the last line is one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not PEER_PYTHON.exists():
        raise SystemExit("the peers are not installed; `make bench` installs them")
    result = {
        "samples_per_s_ratio": round(compare(args, uniform=False), 3),
        "uniform_ratio": round(compare(args, uniform=True), 3),
        "loss_abs_diff": loss_difference(args),
    }
    finish(result, "torch", "transformers")


if __name__ == "__main__":
    main()
