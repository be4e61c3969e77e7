"""vLLM as its users call it, in its own environment: answers lines of JSON on its standard input.

A line has `asked`, which is a list of `[token_ids, seed]`, `tokens`, the length of every response, and
`stop_token_ids`. The answer is `[tokens, seconds, processor seconds]` of one `LLM.generate`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(folder: str, running: int, length: int, cache_gb: float) -> None:
    """Serve until the input ends."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder,
        max_num_seqs=running,
        max_model_len=length,
        enforce_eager=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        kv_cache_memory_bytes=int(cache_gb * 2**30),
        dtype=json.loads((Path(folder) / "config.json").read_text())["dtype"],
    )
    print("ready", flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids, _ in said["asked"]]
        params = [
            SamplingParams(
                max_tokens=said["tokens"],
                min_tokens=said["tokens"],
                stop_token_ids=said["stop_token_ids"],
                seed=seed,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
            )
            for _, seed in said["asked"]
        ]
        began, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        spent = time.perf_counter() - began, time.process_time() - cpu
        print(json.dumps([sum(len(output.outputs[0].token_ids) for output in outputs), *spent]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
