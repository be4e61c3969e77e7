"""Claim: generation through the `vllm` rollout engine is as fast as vLLM called directly, within 5 %.

Two models with random weights: the tiny Qwen2 preset in float32, and one with the shape of SmolLM2-135M in
bfloat16. Three ways to answer the same requests, with a seed for each and a log-probability for each token:
the `hf` engine in this process, the `vllm` engine through its process, and `LLM.generate` in a process of
the same environment. All responses have the same length, and rounds of the three alternate.

Keys: `vllm_path_over_direct` (tokens a second of our path over those of the direct call, the median over
rounds; the lower of the two models), `tokens_per_s.*`, and `update_to_first_token_s.*`: from the first bucket
of new weights to the first token drawn with them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
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
SMOLLM2 = {  # the shape of SmolLM2-135M
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
    requests: int
    tokens: int  # of each response


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("tiny", "135m"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    build(plugins().get("rollouts", "vllm"), say=say)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            Case("tiny", hf_lm(preset="tiny-qwen2"), 64, 64),
            Case("135m", hf_lm(path=str(written(Path(folder) / "135m")), dtype="bfloat16"), 16, 32),
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
    speeds: dict[str, list[float]] = {"hf": [], "vllm": [], "direct": []}
    updates: dict[str, list[float]] = {"hf": [], "vllm": []}
    with own_engine(case) as hf, isolated_engine(case) as vllm, direct(case, folder) as ask:
        engines = {"hf": hf, "vllm": vllm}
        for number in range(rounds + 1):
            for name, engine in engines.items():
                updates[name].append(update_seconds(engine, buckets, case))
            order = list(speeds) if number % 2 else list(speeds)[::-1]
            for name in order:
                speeds[name].append(ask() if name == "direct" else speed(engines[name], case))
            say(f"{case.name} round {number}: " + "  ".join(f"{n} {speeds[n][-1]:.0f}/s" for n in speeds))
    ratios = [ours / theirs for ours, theirs in zip(speeds["vllm"][1:], speeds["direct"][1:], strict=True)]
    found = {f"vllm_path_over_direct.{case.name}": statistics.median(ratios)}
    found |= {f"tokens_per_s.{case.name}.{n}": statistics.median(each[1:]) for n, each in speeds.items()}
    times = {f"update_to_first_token_s.{case.name}.{n}": statistics.median(t[1:]) for n, t in updates.items()}
    return found | times


def requests_of(case: Case, count: int) -> list[Request]:
    random = np.random.default_rng(0)
    prompts = [Prompt(i, random.integers(3, 100, PROMPT), "") for i in range(count)]
    return [Request(prompt, prompt.index, 0, seed=prompt.index) for prompt in prompts]


def speed(engine: RolloutEngine, case: Case) -> float:
    """Tokens a second."""
    sampling = Sampling(max_new_tokens=case.tokens, min_new_tokens=case.tokens)
    chunks = [requests_of(case, case.requests)]
    began = time.perf_counter()
    total = sum(len(sample.response_ids) for made in engine.generate(chunks, sampling) for sample in made)
    return total / (time.perf_counter() - began)


def update_seconds(engine: RolloutEngine, buckets: Sequence[WeightBucket], case: Case) -> float:
    """Until a first token is there."""
    began = time.perf_counter()
    engine.load_weights(buckets)
    for _ in engine.generate([requests_of(case, 1)], Sampling(max_new_tokens=1)):
        pass
    return time.perf_counter() - began


@contextmanager
def own_engine(case: Case) -> Iterator[RolloutEngine]:
    spec = plugins().get("rollouts", "hf")
    yield spec.load()(spec.config(max_running=case.requests), case.model, LoRAConfig())


@contextmanager
def isolated_engine(case: Case) -> Iterator[RolloutEngine]:
    spec = plugins().get("rollouts", "vllm")
    engine = IsolatedRollout(
        spec.config(max_running=case.requests, max_length=512, cache_gb=CACHE_GB),
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
def direct(case: Case, folder: Path) -> Iterator[Any]:
    """A function that has the peer answer, and returns its tokens a second."""
    program = Program.of(plugins().get("rollouts", "vllm"), "always")
    command = [program.python, str(DIRECT), str(folder), str(case.requests), str(case.tokens), str(CACHE_GB)]
    peer = subprocess.Popen(
        command, env=dict(program.variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    asked = json.dumps([[r.prompt.token_ids.tolist(), r.seed] for r in requests_of(case, case.requests)])

    def ask() -> float:
        line_of(peer.stdin).write(asked + "\n")
        line_of(peer.stdin).flush()
        tokens, seconds = json.loads(line_of(peer.stdout).readline())
        return float(tokens / seconds)

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
