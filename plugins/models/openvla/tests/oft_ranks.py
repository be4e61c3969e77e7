"""What one rank does in the test of several ranks; run as `oft_ranks.py FOLDER`."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from rlinf_core.api import LoRAConfig
from rlinf_core.testing.ranks import keep_results
from rlinf_core.types import Trajectory

sys.path.insert(0, str(Path(__file__).parent))
import oft_support as support
from openvla_ranks import batch, trained

__all__ = ["batch"]
CASES = {  # name -> head, adapters, sharding, gradient checkpointing
    "tokens-whole-full": ("tokens", LoRAConfig(), "full", True),
    "tokens-lora-full": ("tokens", LoRAConfig(rank=2, alpha=8.0), "full", False),
    "continuous-whole-full": ("continuous", LoRAConfig(), "full", False),
}


def small(head: str) -> support.OpenVLAOFT:
    """The model of a case."""
    return support.small("token", head=head, noise=1.0, valued=True)


@cache
def rows(head: str) -> list[Trajectory]:
    """Three episodes of 4, 2 and 1 decisions of three actions of two tokens."""
    model = small(head)
    sample = model.act(model.module(1), support.shown(), support.SEEDS)
    lengths = (4, 2, 1)
    return [support.trajectory(support.shown(n), support.first(sample, n), 6) for n in lengths]


def scenario(case: str, folder: Path) -> dict[str, Any]:  # Any: numbers and weights
    """Three steps and an export."""
    head, *how = CASES[case]
    return trained(small(head), rows(head), *how, folder)


def main(folder: Path) -> None:
    """Every scenario."""
    keep_results(CASES, lambda case: scenario(case, folder / case), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
