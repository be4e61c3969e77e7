"""Settings of the algorithms that ship with the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class SFTConfig:
    """Settings of `sft`."""

    loss_aggregation: Literal["token-mean", "sequence-mean"] = (
        "token-mean"  # every token counts the same, or every demonstration
    )

    def __post_init__(self) -> None:
        if self.loss_aggregation not in ("token-mean", "sequence-mean"):
            raise ConfigError(
                f"algo.loss_aggregation (sft): {self.loss_aggregation!r}: use token-mean or sequence-mean"
            )
