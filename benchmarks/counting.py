"""The benchmarks' job: a small Qwen2-architecture model that counts, with long-tailed response lengths.

The prompt names a number n, the right response is the first n of the repeated digits 1234567890. The
model is trained by imitation for a moment, so that its lengths follow the prompts' as a language model's
follow its tasks: most responses are short, a few are near the limit.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
from pathlib import Path

from common import CACHE, ROOT, run, say

LONGEST = 60
MEDIAN = 12


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Prompts with log-normal lengths (median 12, at most 60) and their answers."""
    random_ = random.Random(seed)
    made = []
    for _ in range(count):
        n = min(LONGEST, max(2, round(math.exp(random_.gauss(math.log(MEDIAN), 0.8)))))
        answer = ("1234567890" * 6)[:n]
        made.append({"prompt": f"{n:02d}=", "answer": answer, "demonstration": answer})
    return made


def prepare() -> tuple[Path, Path]:
    """The model directory and the data file, made once."""
    model, data = CACHE / "counting-model", CACHE / "counting.jsonl"
    if not data.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows(4096, seed=1)))
    if not model.exists():
        say("preparing the model (once)")
        output = CACHE / "counting-run"
        shutil.rmtree(output, ignore_errors=True)
        command = [
            str(Path(sys.executable).parent / "rlinf"),
            *("train", "--backend", "fsdp", "--data", str(data), "--reward", "exact", "--steps", "0"),
            *("--output", str(output), "model.name=hf_lm", "model.preset=tiny-qwen2"),
            *("sampling.max_new_tokens=64", "warm_start.steps=120", "warm_start.batch_size=32"),
            *("data.demonstration_key=demonstration", "warm_start.lr=0.001", "eval.samples=64"),
        ]
        run(command, threads=1, log=CACHE / "prepare.log")
        shutil.copytree(output / "export", model)
    return model, data


if __name__ == "__main__":
    say(f"{prepare()} below {ROOT}")
