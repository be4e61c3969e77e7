"""Measures generation against `model.generate` of transformers on the same model, prompts and lengths.

Both sample at temperature 1 with float32 weights on the same threads, and responses end where the
model says so: their lengths are near geometric. Only tokens up to the end count. Rounds of ours and
theirs alternate. `logprob_max_diff` is our log-probabilities against a full float32 forward pass.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from common import finish, say
from rlinf_backend_fsdp.config import HFRolloutConfig
from rlinf_backend_fsdp.rollout import HFRollout
from rlinf_model_hf_lm.characters import EOS, PAD
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.generic_decoder import GenericDecoder
from rlinf_model_hf_lm.model import HFLM
from torch import nn

from rlinf_core.api import Decoder, LoRAConfig, WeightBucket
from rlinf_core.types import Prompt, Request, Sample, Sampling

Measure = tuple[int, float]  # tokens, seconds


class GenericHFLM(HFLM):
    """The same model with the decoder that serves architectures without a fused one."""

    def decoder(self, module: nn.Module, slots: int, max_length: int) -> Decoder:
        return GenericDecoder(module)


def write_model(path: Path, hidden: int, layers: int, mean_length: float) -> None:
    """A random Llama whose end-of-sequence probability is near `1 / mean_length` at every position.

    Hidden dimension 0 holds a constant that no block changes; the end token's logit reads it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    module = LlamaForCausalLM(config)
    with torch.no_grad():
        module.model.embed_tokens.weight.mul_(50)
        module.model.embed_tokens.weight[:, 0] = 1.0
        for layer in module.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        hidden_E = module.model(torch.randint(3, 100, (32, 16))).last_hidden_state.flatten(0, 1)
        others = (hidden_E @ module.lm_head.weight[EOS + 1 :].t()).logsumexp(-1).mean()
        target = others - np.log(mean_length - 1)
        module.lm_head.weight[EOS] = 0
        module.lm_head.weight[EOS, 0] = target / hidden_E[:, 0].mean()
    module.save_pretrained(path)
    HFLM(HFLMConfig(preset="tiny-llama")).processor().save(path)  # type: ignore[attr-defined]


def make_prompts(count: int) -> list[Prompt]:
    rng = np.random.default_rng(1)
    lengths = rng.integers(8, 17, count)
    return [Prompt(i, np.concatenate([[1], rng.integers(3, 100, n)]), "") for i, n in enumerate(lengths)]


def run_ours(
    engine: HFRollout, prompts: Sequence[Prompt], group: int, sampling: Sampling, seed: int
) -> tuple[Measure, list[Sample]]:
    chunks = [
        [Request(prompt, i, r, (seed * len(prompts) + i) * group + r) for r in range(group)]
        for i, prompt in enumerate(prompts)
    ]
    began = time.perf_counter()
    samples = [sample for chunk in engine.generate(chunks, sampling) for sample in chunk]
    seconds = time.perf_counter() - began
    return (sum(len(sample.response_ids) for sample in samples), seconds), samples


def run_theirs(
    module: Any, prompts: Sequence[Prompt], group: int, sampling: Sampling, seed: int, batch: int
) -> Measure:
    torch.manual_seed(seed)
    rows = [prompt.token_ids for prompt in prompts for _ in range(group)]
    tokens = 0
    began = time.perf_counter()
    for begin in range(0, len(rows), batch):
        part = rows[begin : begin + batch]
        width = max(map(len, part))
        ids = torch.tensor([[PAD] * (width - len(row)) + row.tolist() for row in part])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in part])
        output = module.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=sampling.max_new_tokens,
        )[:, width:]
        ended_before = (output == EOS).cumsum(1) - (output == EOS).long() > 0
        tokens += int((~ended_before).sum())
    return tokens, time.perf_counter() - began


def largest_difference(module: Any, samples: Sequence[Sample]) -> float:
    """Our log-probabilities against a full forward pass of each sequence, one by one."""
    largest = 0.0
    with torch.inference_mode():
        for sample in samples:
            ids = np.concatenate([sample.prompt.token_ids, sample.response_ids])
            logits = module(torch.from_numpy(ids)[None]).logits[0, len(sample.prompt.token_ids) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, torch.from_numpy(sample.response_ids)[:, None])[:, 0]
            largest = max(largest, float((expected - torch.from_numpy(sample.logprobs)).abs().max()))
    return largest


def make_engine(model: HFLM, module: nn.Module) -> HFRollout:
    engine = HFRollout(HFRolloutConfig(), model, LoRAConfig())
    engine.load_weights([WeightBucket(0, dict(module.named_parameters()), last=True)])
    return engine


def compare(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """One JSON-able object: the ratio of median rates, and the figures behind it."""
    config = HFLMConfig(path=str(path))
    model = HFLM(config)
    module: Any = model.module().eval()  # Any: transformers modules are not typed
    fused, generic = make_engine(model, module), make_engine(GenericHFLM(config), module)
    prompts = make_prompts(arguments.prompts)
    group, sampling = arguments.group, Sampling(max_new_tokens=arguments.max_new_tokens)
    rows = arguments.prompts * group
    runners: dict[str, Callable[[int], Measure]] = {
        "fused": lambda seed: run_ours(fused, prompts, group, sampling, seed)[0],
        "generic": lambda seed: run_ours(generic, prompts, group, sampling, seed)[0],
        f"generate, batch {rows}": lambda seed: run_theirs(module, prompts, group, sampling, seed, rows),
        "generate, batch 64": lambda seed: run_theirs(module, prompts, group, sampling, seed, 64),
    }
    rates: dict[str, list[float]] = {name: [] for name in runners}
    lengths: dict[str, list[float]] = {name: [] for name in runners}
    for seed in range(arguments.rounds + 1):
        for name, runner in runners.items():
            tokens, seconds = runner(seed)
            if seed:  # the first round warms up
                rates[name].append(tokens / seconds)
                lengths[name].append(tokens / rows)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        say(f"{name:22s} {rate:9.0f} tokens/s, mean length {np.mean(lengths[name]):.1f}")
    peer = max(rate for name, rate in medians.items() if name.startswith("generate"))
    _, samples = run_ours(fused, prompts, group, sampling, seed=99)
    return {
        "tokens_per_s_ratio": round(medians["fused"] / peer, 3),
        "generic_tokens_per_s_ratio": round(medians["generic"] / peer, 3),
        "logprob_max_diff": largest_difference(module, samples),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--mean-length", type=float, default=32.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), arguments.hidden, arguments.layers, arguments.mean_length)
        result = compare(arguments, Path(folder))
    finish(result, "torch", "transformers", "rlinf-core")


if __name__ == "__main__":
    main()
