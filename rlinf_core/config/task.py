"""Which settings a task uses: a run has a text task, or an embodied one if it names a simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlinf_core.api.capabilities import Modality
from rlinf_core.config.schema import RunConfig

UNUSED: Mapping[Modality, Sequence[str]] = {  # dotted keys, whole sections or single ones
    "text": (),
    "embodied": (
        "rollout",
        "data",
        "reward",
        "sampling",
        "warm_start",
        "reward_pool",
        "train.max_prompt_tokens",
    ),
}


def task_of(config: RunConfig) -> Modality:
    """The kind of task a run is for."""
    return "text" if config.simulator is None else "embodied"


def unused_keys(config: RunConfig) -> Sequence[str]:
    """The dotted keys that the run's task does not use."""
    return UNUSED[task_of(config)]


def used(key: str, unused: Sequence[str]) -> bool:
    """Whether a dotted key is outside of all unused ones."""
    return not any(key == name or key.startswith(f"{name}.") for name in unused)
