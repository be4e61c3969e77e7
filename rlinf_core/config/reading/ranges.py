"""The ranges of the core's own settings; plugins check theirs in `__post_init__`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf_core.api.backend import LoRAConfig, OptimizerConfig
from rlinf_core.config.schema import (
    AgentConfig,
    CheckpointConfig,
    EnvPoolConfig,
    EvalConfig,
    RewardPoolConfig,
    RolloutProcessConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
    VideoConfig,
    WarmStartConfig,
)
from rlinf_core.errors import ConfigError
from rlinf_core.types import Sampling


class Range:
    """A condition on one value, with the words a message uses for it."""

    def __init__(self, words: str, holds: Callable[[Any], bool]) -> None:  # Any: a number, or numbers
        self.words = words
        self.holds = holds


def at_least(low: float) -> Range:
    return Range(f"{low} or more", lambda value: value >= low)


POSITIVE = Range("above 0", lambda value: value > 0)
SHARE = Range("between 0 and 1", lambda value: 0 <= value <= 1)
BELOW_ONE = Range("0 or more and below 1", lambda value: 0 <= value < 1)

RANGES: Mapping[type, Mapping[str, Range]] = {
    TrainConfig: {
        "steps": at_least(0),
        "prompts_per_step": at_least(1),
        "samples_per_step": at_least(0),
        "mini_batches": at_least(1),
        "update_epochs": at_least(1),
        "micro_batch_tokens": at_least(1),
        "max_staleness": at_least(0),
        "max_skipped_updates": at_least(0),
        "max_prompt_tokens": at_least(0),
        "num_envs": at_least(0),
    },
    AgentConfig: {
        "max_turns": at_least(1),
        "max_result_tokens": at_least(1),
        "timeout_s": POSITIVE,
        "concurrency": at_least(1),
        "episode_s": POSITIVE,
    },
    OptimizerConfig: {
        "lr": at_least(0),
        "weight_decay": at_least(0),
        "betas": Range("two numbers, each 0 or more and below 1", lambda pair: all(0 <= b < 1 for b in pair)),
        "eps": POSITIVE,
        "grad_clip": at_least(0),
        "warmup_steps": at_least(0),
        "min_lr_ratio": SHARE,
    },
    LoRAConfig: {"rank": at_least(0), "alpha": POSITIVE, "dropout": BELOW_ONE},
    Sampling: {
        "max_new_tokens": at_least(1),
        "temperature": at_least(0),
        "top_p": Range("above 0 and at most 1", lambda value: 0 < value <= 1),
        "top_k": at_least(0),
        "min_new_tokens": at_least(0),
    },
    EvalConfig: {
        "every": at_least(0),
        "samples": at_least(1),
        "temperature": Range("0 or more, or null", lambda value: value is None or value >= 0),
    },
    CheckpointConfig: {"every": at_least(0), "keep": at_least(0), "keep_batches": at_least(0)},
    WarmStartConfig: {"steps": at_least(0), "batch_size": at_least(1), "lr": POSITIVE},
    RewardPoolConfig: {
        "workers": at_least(0),
        "timeout_s": POSITIVE,
        "retries": at_least(0),
        "max_error_rate": SHARE,
    },
    RolloutProcessConfig: {"timeout_s": POSITIVE},
    EnvPoolConfig: {"processes": at_least(0), "timeout_s": POSITIVE, "restarts": at_least(0)},
    VideoConfig: {"every": at_least(0), "episodes": at_least(1), "fps": at_least(1)},
    ScheduleConfig: {"profile_steps": at_least(1), "stages": at_least(0), "chunk": at_least(0)},
    RunConfig: {"seed": at_least(0), "ranks": at_least(0)},
}


def check_range(cls: type, name: str, value: Any) -> None:
    """Raise `ConfigError` if the value of a core section's field is out of its range."""
    allowed = RANGES.get(cls, {}).get(name)
    if allowed is not None and not allowed.holds(value):
        raise ConfigError(f"must be {allowed.words}, got {value!r}")
