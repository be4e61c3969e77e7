"""A run of rlinf as a run of SwanLab."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.api import Tracker
from rlinf_core.errors import ConfigError
from rlinf_tracker_swanlab.config import SwanLabConfig

FOLDER = "swanlab"  # below the run's output folder
RUN_ID = "rlinf-run-id"  # the file there that holds the id which a resumed run goes on with


class SwanLab(Tracker):
    """Everything of one step is one step there; a resumed run goes on under the same id."""

    config: SwanLabConfig

    def start(self, output: Path, run_config: Mapping[str, Any], resumed_step: int) -> None:
        try:
            self._swanlab = importlib.import_module("swanlab")
        except ImportError as err:
            raise ConfigError(f"the tracker swanlab needs its package: pip install swanlab ({err})") from err
        folder = (output / FOLDER).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        hooks = (sys.excepthook, signal.getsignal(signal.SIGINT))
        self._run = self._swanlab.init(
            mode=self.config.mode,
            project=self.config.project,
            workspace=self.config.workspace or None,
            name=self.config.run_name or output.resolve().name,
            group=self.config.group or None,
            tags=list(self.config.tags),
            log_dir=str(folder),
            id=_run_id(folder / RUN_ID),
            resume="allow",
            config=dict(run_config),
            settings=_settings(self._swanlab, system=self.config.system),
        )
        _put_back(*hooks)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if metrics:
            self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        texts = [json.dumps(sample, indent=2, ensure_ascii=False) for sample in samples]
        if texts:
            self._run.log_text(key="samples", data=texts, step=step)

    def log_picture(self, step: int, name: str, file: Path) -> None:
        self._run.log_image(key=name, data=str(file), step=step)

    def finish(self, error: BaseException | None) -> None:
        if error is None:
            self._run.finish()
            return
        state = "aborted" if isinstance(error, KeyboardInterrupt) else "crashed"
        self._run.finish(state=state, error=f"{type(error).__name__}: {error}")


def _put_back(excepthook: Any, on_sigint: Any) -> None:  # Any: whatever was there
    """`finish` tells how a run ends, and Ctrl-C is the run's own; SwanLab's hooks would end it before."""
    sys.excepthook = excepthook
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, on_sigint)


def _settings(swanlab: Any, *, system: bool) -> Any:  # Any: classes of the package
    """No questions, no copy of the terminal, and nothing of the machine unless asked for."""
    kinds = ("hardware", "runtime", "requirements", "git", "monitor")
    return swanlab.Settings(
        interactive=False,
        probe=swanlab.Settings.Probe(conda=False, **dict.fromkeys(kinds, system)),
        terminal=swanlab.Settings.Terminal(proxy_type="none"),
    )


def _run_id(file: Path) -> str:
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:16])
    return file.read_text().strip()
