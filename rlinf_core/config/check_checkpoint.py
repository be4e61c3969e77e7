"""What keeping the best checkpoint takes: steps that are both saved and evaluated."""

from __future__ import annotations

from collections.abc import Iterable

from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import RunConfig


def checkpoint_warnings(config: RunConfig) -> Iterable[str]:
    """Checkpoints that could not be the best because nothing was measured at their step."""
    saved, evaluated = config.checkpoint.every, config.eval.every
    if not config.checkpoint.keep_best.removeprefix("-").startswith("eval/") or not saved:
        return
    if not evaluated or saved % evaluated:
        yield (
            f"checkpoint.keep_best: checkpoint.every={saved} is no multiple of eval.every={evaluated}; only "
            "checkpoints of steps that are evaluated can be the best"
            f"{came(config, 'checkpoint.keep_best')}"
        )
