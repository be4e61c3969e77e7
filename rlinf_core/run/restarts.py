"""A run that lost a worker's process or its machine, and goes on from its last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import WorkerDied
from rlinf_core.run.healing import Restarts
from rlinf_core.run.output import SETTINGS
from rlinf_core.run.runner import Runner
from rlinf_core.run.summary import RunSummary

if TYPE_CHECKING:
    from rlinf_core.api import Engine
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.run.view import View


def run_with_restarts(
    config: RunConfig,
    dumped: Mapping[str, Any],  # Any: YAML values
    view: View,
    engine: Engine,
    *,
    resume: bool,
    allow_changes: bool = False,
) -> RunSummary:
    """Run to the end. Processes that are lost are started again, `engine.restarts` times at most: alone where
    that can be done, otherwise the run goes on as `--resume` does, on the machines that are left or have come
    back."""
    restarts = Restarts(engine.restarts)
    while True:
        try:
            runner = Runner(
                config,
                dumped,
                view,
                resume=resume,
                allow_changes=allow_changes,
                engine=engine,
                restarts=restarts,
            )
            return runner.run()
        except WorkerDied as death:
            if not restarts.left:
                raise
            restarts.spend(death)
            view.note(f"{death}\nThe run goes on from its last checkpoint ({restarts.left} restarts left).")
            resume = (Path(config.output) / SETTINGS).exists()
