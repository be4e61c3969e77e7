"""Claim: generation through the `vllm` rollout engine is as fast as vLLM called directly, within 5 %.

Two models with random weights: the tiny Qwen2 preset in float32, and one with the shape of SmolLM2-135M in
bfloat16. The same requests are answered in three ways: by the `vllm` engine through its process, by
`LLM.generate` in a process of the same environment, and, a third of them, by the `hf` engine in this one.
Both sides of vLLM have the same variables, one thread, the same cache, as many responses at once, the same
sampling: a seed for each request, a log-probability for each token, no end before the last of so many tokens.
There are more requests than run at once, and new ones each time. In a round one side of vLLM works, then the
other twice, and the first again, for a few seconds each; which is first alternates, and one round is warm-up.

Keys: `vllm_path_over_direct` (tokens a second of our path over those of the direct call, the median over
rounds; the lower of the two models), `cpu_over_direct.*` (processor time a token of our path, of both its
processes, over that of the direct call), `tokens_per_s.*`, and `update_to_first_token_s.*`: from the first
bucket of new weights to the first token drawn with them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from common import finish, say

from rlinf_core.api import LoRAConfig, Model, RolloutEngine, WeightBucket
from rlinf_core.isolated_rollout.proxy import IsolatedRollout
from rlinf_core.isolation import build
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import plugins
from rlinf_core.types import Prompt, Request, Sampling

DIRECT = Path(__file__).resolve().parent / "peers" / "vllm_direct.py"
CACHE_GB = 0.5
PROMPT = 16  # tokens
LENGTH = 512  # of prompt and response together, at most
SMOLLM2: dict[str, Any] = {  # the shape of SmolLM2-135M
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Case:
    """A model with the work that is measured."""

    name: str
    model: Model
    running: int  # responses at once
    requests: int
    tokens: int  # of each response

    @property
    def sampling(self) -> Sampling:
        """Responses of one length."""
        return Sampling(max_new_tokens=self.tokens, min_new_tokens=self.tokens)


@dataclass(frozen=True)
class Spent:
    """What one round of work took."""

    tokens: int
    seconds: float
    cpu_s: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.tokens + other.tokens, self.seconds + other.seconds, self.cpu_s + other.cpu_s)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("tiny", "135m"))
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    build(plugins().get("rollouts", "vllm"), say=say)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        shape = hf_lm(path=str(written(Path(folder) / "135m")), dtype="bfloat16")
        cases = [
            Case("tiny", hf_lm(preset="tiny-qwen2"), 64, int(160 * asked.scale), 96),
            Case("135m", shape, 16, int(40 * asked.scale), 16),
        ]
        for case in cases:
            if asked.only in (None, case.name):
                result |= measure(case, Path(folder) / f"{case.name}-whole", asked.rounds)
    ratios = [value for key, value in result.items() if key.startswith("vllm_path_over_direct.")]
    result = {"vllm_path_over_direct": min(ratios), **result, "rounds": asked.rounds}
    finish(result, "rlinf-core", "torch", "transformers")


def hf_lm(**settings: Any) -> Model:
    spec = plugins().get("models", "hf_lm")
    model: Model = spec.load()(spec.config(**settings))
    return model


def written(folder: Path) -> Path:
    """A folder with random weights of SmolLM2's shape, and the tokenizer of a preset."""
    from transformers import LlamaConfig, LlamaForCausalLM

    hf_lm(preset="tiny-llama").export_architecture(folder)
    torch.manual_seed(0)
    config = LlamaConfig(**SMOLLM2, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def measure(case: Case, folder: Path, rounds: int) -> dict[str, float]:
    """Tokens a second and update times of the engines, by key."""
    module = case.model.module(0)
    case.model.export(iter(module.state_dict().items()), folder)
    buckets = [WeightBucket(1, dict(module.named_parameters()), last=True)]
    spent: dict[str, list[Spent]] = {"hf": [], "vllm": [], "direct": []}
    updates: dict[str, list[float]] = {"hf": [], "vllm": []}
    with own_engine(case) as hf, isolated_engine(case) as vllm, direct(case, folder) as ask:
        ways = {
            "hf": lambda requests: work(hf, case, requests[: len(requests) // 3]),
            "vllm": lambda requests: work(vllm, case, requests, vllm.pid),
            "direct": ask,
        }
        for number in range(rounds + 1):
            updates["hf"].append(update_seconds(hf, buckets, case))
            updates["vllm"].append(update_seconds(vllm, buckets, case))
            first, second = ("vllm", "direct") if number % 2 else ("direct", "vllm")
            parts = {name: [ways[name](requests_of(case, 2 * number))] for name in ("hf", first, second)}
            for name in (second, first):
                parts[name].append(ways[name](requests_of(case, 2 * number + 1)))
            for name, each in parts.items():
                spent[name].append(sum(each[1:], each[0]))
            say(f"{case.name} round {number}: " + "  ".join(told(n, spent[n][-1]) for n in ways))
    return summary(case.name, {n: each[1:] for n, each in spent.items()}, updates)


def told(name: str, spent: Spent) -> str:
    return f"{name} {spent.speed:.0f}/s ({spent.seconds:.1f} s, cpu {spent.cpu_s:.1f})"


def summary(case: str, spent: dict[str, list[Spent]], updates: dict[str, list[float]]) -> dict[str, float]:
    """By key."""
    pairs = list(zip(spent["vllm"], spent["direct"], strict=True))
    found = {
        f"vllm_path_over_direct.{case}": statistics.median(a.speed / b.speed for a, b in pairs),
        f"cpu_over_direct.{case}": statistics.median(
            (a.cpu_s / a.tokens) / (b.cpu_s / b.tokens) for a, b in pairs
        ),
    }
    for name, each in spent.items():
        found[f"tokens_per_s.{case}.{name}"] = statistics.median(one.speed for one in each)
    for name, times in updates.items():
        found[f"update_to_first_token_s.{case}.{name}"] = statistics.median(times[1:])
    return found


def requests_of(case: Case, number: int) -> list[Request]:
    """Those of a round: prompts that were not there before, so that no cache knows them."""
    random = np.random.default_rng(number)
    prompts = [Prompt(i, random.integers(3, 100, PROMPT), "") for i in range(case.requests)]
    return [Request(prompt, prompt.index, 0, seed=1000 * number + prompt.index) for prompt in prompts]


def work(engine: RolloutEngine, case: Case, requests: list[Request], pid: int | None = None) -> Spent:
    """Have an engine answer; `pid` is its process, if it has one of its own."""
    began, cpu = time.perf_counter(), cpu_s(pid)
    made = [sample for chunk in engine.generate([requests], case.sampling) for sample in chunk]
    seconds = time.perf_counter() - began
    return Spent(sum(len(sample.response_ids) for sample in made), seconds, cpu_s(pid) - cpu)


def cpu_s(pid: int | None) -> float:
    """Processor seconds of this process and another one."""
    if pid is None:
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def update_seconds(engine: RolloutEngine, buckets: Sequence[WeightBucket], case: Case) -> float:
    """Until a first token is there."""
    request = requests_of(case, 0)[:1]
    began = time.perf_counter()
    engine.load_weights(buckets)
    for _ in engine.generate([request], Sampling(max_new_tokens=1)):
        pass
    return time.perf_counter() - began


@contextmanager
def own_engine(case: Case) -> Iterator[RolloutEngine]:
    spec = plugins().get("rollouts", "hf")
    yield spec.load()(spec.config(max_running=case.running), case.model, LoRAConfig())


@contextmanager
def isolated_engine(case: Case) -> Iterator[IsolatedRollout]:
    spec = plugins().get("rollouts", "vllm")
    engine = IsolatedRollout(
        spec.config(max_running=case.running, max_length=LENGTH, cache_gb=CACHE_GB),
        case.model,
        LoRAConfig(),
        name="vllm",
        target=spec.target,
        program=Program.of(spec, "always"),
        timeout_s=600.0,
    )
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def direct(case: Case, folder: Path) -> Iterator[Callable[[list[Request]], Spent]]:
    """A function that has the peer answer."""
    program = Program.of(plugins().get("rollouts", "vllm"), "always")
    command = [program.python, str(DIRECT), str(folder), str(case.running), str(LENGTH), str(CACHE_GB)]
    peer = subprocess.Popen(
        command, env=dict(program.variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    ends = sorted(case.model.processor().eos_ids)

    def ask(requests: list[Request]) -> Spent:
        asked = [[request.prompt.token_ids.tolist(), request.seed] for request in requests]
        line = {"asked": asked, "tokens": case.tokens, "stop_token_ids": ends}
        line_of(peer.stdin).write(json.dumps(line) + "\n")
        line_of(peer.stdin).flush()
        return Spent(*json.loads(line_of(peer.stdout).readline()))

    try:
        while line_of(peer.stdout).readline() not in ("ready\n", ""):
            continue
        yield ask
    finally:
        line_of(peer.stdin).close()
        peer.wait()


def line_of(end: IO[str] | None) -> IO[str]:
    if end is None:
        raise RuntimeError("the peer has no pipes")
    return end


if __name__ == "__main__":
    main()
