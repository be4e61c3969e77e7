"""Settings that follow from others: sections that inherit, and prompts from a number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from rlinf_core.config.reading.layers import Merged
from rlinf_core.config.schema import INHERITS, TrainConfig


def inherited(sections: Mapping[str, Any], merged: Merged) -> dict[str, Any]:
    """The sections whose keys are those of another one, where they are not set; with origins."""
    made = {}
    for section, source in INHERITS.items():
        own = {name: getattr(sections[section], name) for name in merged.tree.get(section, {})}
        made[section] = replace(sections[source], **own)
        for item in fields(sections[source]):
            origin = merged.origins.get(f"{source}.{item.name}")
            if item.name not in own and origin is not None:
                merged.origins[f"{section}.{item.name}"] = origin
    return made


def with_prompts(train: TrainConfig, group_size: int, merged: Merged) -> TrainConfig:
    """`samples_per_step` as the prompts that it means: whole groups, one at least."""
    samples = train.samples_per_step
    if not samples:
        return train
    origin = merged.origins.pop("train.samples_per_step", "default")
    merged.origins["train.prompts_per_step"] = f"samples_per_step={samples}, {origin}"
    return replace(train, prompts_per_step=max(1, samples // group_size), samples_per_step=0)
