"""Claim: log-probabilities of tokens from logits need next to no memory beside the logits, and less time.

`fused_logprobs` beside `log_softmax` and `gather` over the whole vocabulary, float32. Times: the two
alternate in one process, medians of several rounds. Memory: each runs once in a process of its own; its
extra memory is the high-water mark of the resident set (`ru_maxrss`) less what was resident before with
the logits made, and, where there is a backward pass, less the gradient of the logits, which both return.

Keys: `max_diff` (largest difference of log-probabilities and of gradients); ours over the full one:
`time_ratio` of both passes together and of each, `forward_extra_memory_ratio` of the forward pass alone,
`backward_extra_memory_ratio` of both passes, and `extra_memory_ratio`, the larger of these two.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import finish, say
from torch import Tensor

from rlinf_core.rl.logprobs import fused_logprobs

LogProbs = Callable[[Tensor, Tensor], Tensor]


def fused(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    return fused_logprobs(logits_NV, ids_N)[0]


def full(logits_NV: Tensor, ids_N: Tensor) -> Tensor:
    return logits_NV.log_softmax(-1).gather(-1, ids_N[:, None]).squeeze(-1)


WAYS: dict[str, LogProbs] = {"fused": fused, "full": full}


def inputs(rows: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """The same logits and tokens each time."""
    torch.manual_seed(0)
    logits_NV = torch.empty(rows, vocabulary).normal_(std=3.0).requires_grad_()
    return logits_NV, torch.randint(0, vocabulary, (rows,))


def seconds(way: LogProbs, logits_NV: Tensor, ids_N: Tensor) -> tuple[float, float]:
    """Of the forward and of the backward pass."""
    logits_NV.grad = None
    began = time.perf_counter()
    total = way(logits_NV, ids_N).sum()
    between = time.perf_counter()
    total.backward()
    return between - began, time.perf_counter() - between


def resident() -> int:
    """Bytes of the resident set now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def extra_bytes(way: LogProbs, rows: int, vocabulary: int, backward: bool) -> int:
    """Measured in this process, which must have done nothing bigger before."""
    small_NV, small_N = inputs(2, 1000)
    way(small_NV, small_N).sum().backward()  # code is loaded by now
    logits_NV, ids_N = inputs(rows, vocabulary)
    before = resident()
    total = way(logits_NV, ids_N).sum()
    if backward:
        total.backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # The kernel counts pages in batches: what is nothing may come out as a few less than nothing.
    return max(0, peak - before - (logits_NV.nbytes if backward else 0))


def extra_memory(name: str, sizes: list[str], backward: bool) -> int:
    """`extra_bytes` in a process of its own."""
    command = [sys.executable, __file__, *sizes, "--memory-of", name, *(["--backward"] if backward else [])]
    return int(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def largest_difference(logits_NV: Tensor, ids_N: Tensor) -> float:
    """Of log-probabilities and of the gradients of their sum."""
    found: list[tuple[Tensor, Tensor]] = []
    for way in WAYS.values():
        logprobs_N = way(logits_NV, ids_N)
        found.append((logprobs_N.detach(), torch.autograd.grad(logprobs_N.sum(), logits_NV)[0]))
    return max(float((ours - theirs).abs().max()) for ours, theirs in zip(*found, strict=True))


def time_ratios(logits_NV: Tensor, ids_N: Tensor, rounds: int) -> dict[str, float]:
    """Medians of ours over those of the full way, after a round that does not count."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds + 1):
        for name, way in WAYS.items():
            taken[name].append(seconds(way, logits_NV, ids_N))
    medians = {}
    for name, pairs in taken.items():
        forward, backward = ([pair[part] for pair in pairs[1:]] for part in (0, 1))
        both = [sum(pair) for pair in pairs[1:]]
        medians[name] = [statistics.median(times) for times in (both, forward, backward)]
        say(f"{name:6} forward {medians[name][1] * 1e3:.1f} ms, backward {medians[name][2] * 1e3:.1f} ms")
    keys = ("time_ratio", "forward_time_ratio", "backward_time_ratio")
    return {key: medians["fused"][i] / medians["full"][i] for i, key in enumerate(keys)}


def memory_ratios(sizes: list[str]) -> dict[str, float]:
    """Extra memory of ours over that of the full way."""
    ratios = {}
    for key, backward in (("forward_extra_memory_ratio", False), ("backward_extra_memory_ratio", True)):
        extra = {name: extra_memory(name, sizes, backward) for name in WAYS}
        say(f"{key}: " + ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in extra.items()))
        ratios[key] = extra["fused"] / extra["full"]
    return {"extra_memory_ratio": max(ratios.values()), **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.memory_of:
        print(extra_bytes(WAYS[asked.memory_of], asked.rows, asked.vocabulary, asked.backward))
        return
    sizes = [f"--{name}={getattr(asked, name)}" for name in ("rows", "vocabulary", "threads")]
    result: dict[str, Any] = memory_ratios(sizes)
    logits_NV, ids_N = inputs(asked.rows, asked.vocabulary)
    result |= time_ratios(logits_NV, ids_N, asked.rounds)
    result |= {"max_diff": largest_difference(logits_NV, ids_N)}
    result |= {"rows": asked.rows, "vocabulary": asked.vocabulary}
    finish(result, "rlinf-core", "torch")


if __name__ == "__main__":
    main()
