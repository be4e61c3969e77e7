"""Options of DAPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlinf_core.objective.options import PolicyOptions


@dataclass(frozen=True)
class DAPOConfig(PolicyOptions):
    """Defaults: those of the paper, but for the overlong punishment, which needs a length to start at."""

    algorithm: ClassVar[str] = "dapo"

    clip_ratio_high: float | None = 0.28  # clip-higher: unlikely tokens may grow more than others shrink
    group_size: int = 8  # responses per prompt
    dynamic_sampling: bool = True  # replace groups whose rewards are all equal by those of other prompts
    max_rounds: int = 32  # of generation a step, before the run ends with an error
    filter_metric: str = ""  # the reward that has to differ within a group, by name; "" = the whole reward
    overlong_buffer: int = 0  # tokens before the longest response allowed where punishment sets in; 0 = off
    overlong_penalty: float = 1.0  # taken from the reward of the longest responses
    logprob_level: Literal["chunk", "action", "token"] = (
        "chunk"  # what of a robot policy's decision gets a log-probability and a ratio of its own
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2:
            raise self.error("group_size", "a group of one has no baseline; use 2 or more")
        if self.max_rounds < 1:
            raise self.error("max_rounds", "must be 1 or more; dynamic_sampling=false keeps every group")
        if self.filter_metric and not self.dynamic_sampling:
            raise self.error("filter_metric", 'only dynamic_sampling uses it; set it to ""')
        if self.overlong_buffer < 0:
            raise self.error("overlong_buffer", "must be 0 or more")
        if self.overlong_penalty <= 0.0:
            raise self.error("overlong_penalty", "must be above 0; overlong_buffer=0 switches it off")
