"""A run of rlinf as a run of Weights & Biases."""

from __future__ import annotations

import importlib
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.api import Tracker
from rlinf_core.errors import ConfigError
from rlinf_tracker_wandb.config import WandbConfig

FOLDER = "wandb"  # below the run's output folder
RUN_ID = "rlinf-run-id"  # the file there that holds the id which a resumed run goes on with


class Wandb(Tracker):
    """Everything of one step is one step there; a resumed run goes on under the same id."""

    config: WandbConfig

    def start(self, output: Path, run_config: Mapping[str, Any], resumed_step: int) -> None:
        self._wandb = _imported(self.config)
        folder = (output / FOLDER).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self._staged = "WANDB_DATA_DIR" not in os.environ
        if self._staged:  # tables lie there until they are sent, by default below the home directory
            os.environ["WANDB_DATA_DIR"] = str(folder)
        known = (folder / RUN_ID).exists()
        hook = sys.excepthook
        self._run = self._wandb.init(
            mode=self.config.mode,
            project=self.config.project,
            entity=self.config.entity or None,
            name=self.config.run_name or output.resolve().name,
            group=self.config.group or None,
            tags=list(self.config.tags),
            dir=str(folder.parent),
            id=_run_id(folder / RUN_ID),
            # Offline there is nothing to look up: files of the same id become one run when they are sent.
            resume="allow" if known and self.config.mode == "online" else None,
            config=dict(run_config),
            allow_val_change=True,
            reinit="create_new",
            settings=_settings(self._wandb, self.config),
        )
        sys.excepthook = hook  # how a run ends is said by `finish`

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        columns = list(dict.fromkeys(name for sample in samples for name in sample))
        rows = [[_cell(sample.get(name)) for name in columns] for sample in samples]
        table = self._wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        self._run.log({"samples": table}, step=step)

    def log_picture(self, step: int, name: str, file: Path) -> None:
        self._run.log({name: self._wandb.Image(str(file))}, step=step)

    def log_video(self, step: int, name: str, file: Path) -> None:
        self._run.log({f"{name}-mp4": self._wandb.Video(str(file), format="mp4")}, step=step)

    def finish(self, error: BaseException | None) -> None:
        if error is not None:
            self._run.summary["error"] = f"{type(error).__name__}: {error}"
        self._run.finish(exit_code=0 if error is None else 1)
        if self._staged:
            os.environ.pop("WANDB_DATA_DIR", None)


def _imported(config: WandbConfig) -> Any:  # Any: a module without stable types
    if config.mode == "offline":
        # Read when the package is imported and when its service starts: no report of errors to its makers.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        return importlib.import_module("wandb")
    except ImportError as err:
        raise ConfigError(f"the tracker wandb needs its package: pip install wandb ({err})") from err


def _settings(wandb: Any, config: WandbConfig) -> Any:  # Any: classes of the package
    return wandb.Settings(
        console="off",
        silent=True,
        disable_git=not config.system,
        disable_code=True,
        x_disable_stats=not config.system,
        x_disable_meta=not config.system,
        x_disable_machine_info=not config.system,
        x_save_requirements=config.system,
        init_timeout=config.timeout_s,
        finish_timeout=config.timeout_s,
    )


def _run_id(file: Path) -> str:
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:16])
    return file.read_text().strip()


def _cell(value: object) -> object:
    """What a column can hold: text and numbers; lists and the like as text."""
    return value if value is None or isinstance(value, str | int | float) else str(value)
