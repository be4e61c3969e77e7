"""SGLang's sampling parameters for a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_core.isolated_rollout.engine import Job
    from rlinf_core.types import Sampling

INTERVAL = 16  # tokens after which SGLang tells of a response that nobody reads meanwhile


def parts(
    job: Job, sampling: Sampling, eos_ids: Sequence[int], *, stream: bool, seeded: bool
) -> list[dict[str, Any]]:  # Any: values of settings
    """One after the other, each going on where the one before ended. SGLang's own `min_new_tokens` needs a
    tokenizer, which it has none of here: a part that cannot end comes first instead."""
    shared: dict[str, Any] = {
        "temperature": sampling.temperature,
        "stream_interval": 1 if stream else INTERVAL,
    }
    if seeded:
        shared["sampling_seed"] = job.seed
    ends = {"ignore_eos": False, "stop_token_ids": list(eos_ids)}
    least = min(job.least, job.most)
    if not least:
        return [shared | ends | {"max_new_tokens": job.most}]
    never = {"ignore_eos": True, "logit_bias": {str(token): float("-inf") for token in eos_ids}}
    first = shared | never | {"max_new_tokens": least}
    rest = job.most - least
    return [first, shared | ends | {"max_new_tokens": rest}] if rest else [first]
