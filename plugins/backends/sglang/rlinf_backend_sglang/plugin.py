"""Registers the rollout engine `sglang`."""

from __future__ import annotations

from rlinf_backend_sglang.config import SGLangConfig
from rlinf_core.api import RolloutCapabilities
from rlinf_core.plugins import Isolation, RolloutSpec, hookimpl

VARIABLES = {"HF_HUB_OFFLINE": "1"}  # the model comes from the trainer


@hookimpl
def rlinf_register_rollouts() -> list[RolloutSpec]:
    """The one rollout engine of this distribution. SGLang tells log-probabilities before top-k and top-p, not
    those of the distribution that tokens are drawn from, so that it offers neither."""
    return [
        RolloutSpec(
            name="sglang",
            summary="Generation by SGLang, in a process of an environment of its own",
            config=SGLangConfig,
            target="rlinf_backend_sglang.engine:SGLangEngine",
            provides=RolloutCapabilities(top_p=False, top_k=False, lora=True, abort=True, continues=True),
            isolation=Isolation(
                lock="rlinf_backend_sglang/lock.txt",
                imports=("sglang",),
                variables=VARIABLES,
                resolve=True,
                python=">=3.11,<3.14",
            ),
            example={"max_running": 16},
            checked_with={"name": "hf_lm", "preset": "tiny-qwen2"},
        )
    ]
