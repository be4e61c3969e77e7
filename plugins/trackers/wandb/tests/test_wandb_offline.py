"""Offline means offline, from the import to the end of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from pathlib import Path
from rlinf_core.testing.outside import refused_connections
with refused_connections() as tried:
    from rlinf_tracker_wandb.config import WandbConfig
    from rlinf_tracker_wandb.tracker import Wandb
    tracker = Wandb(WandbConfig())
    tracker.start(Path(sys.argv[1]), {"seed": 7}, 0)
    tracker.log(1, {"train/loss": 0.5})
    tracker.log_samples(1, [{"prompt": "p"}])
    tracker.finish(None)
    import wandb
    wandb.teardown()
print("tried:", tried)
"""
QUIETED_BY = ("PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS", "WANDB_ERROR_REPORTING")


def test_a_fresh_process_reaches_for_no_other_machine(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in QUIETED_BY}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "tried: []" in done.stdout
