"""vLLM as its users call it, in its own environment: answers lines of JSON on its standard input.

A line is a list of `[token_ids, seed]`; the answer is `[tokens, seconds]` of one `LLM.generate`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(folder: str, running: int, tokens: int, cache_gb: float) -> None:
    """Serve until the input ends."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder,
        max_num_seqs=running,
        max_model_len=512,
        enforce_eager=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        kv_cache_memory_bytes=int(cache_gb * 2**30),
        dtype=json.loads((Path(folder) / "config.json").read_text())["dtype"],
    )
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids, _ in asked]
        params = [
            SamplingParams(
                max_tokens=tokens,
                min_tokens=tokens,
                seed=seed,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
            )
            for _, seed in asked
        ]
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        print(json.dumps([sum(len(output.outputs[0].token_ids) for output in outputs), seconds]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
