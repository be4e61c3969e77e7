"""The folder of a run: refused where it holds another run, claimed once the settings are known to work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.config.compose import compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import Options
from rlinf_core.config.show import commented_yaml
from rlinf_core.errors import CheckpointError, ConfigError, RlinfError

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig

SETTINGS = "config.yaml"
PLAN = "plan.yaml"  # by which the run goes on
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
CHECKPOINTS = "checkpoints"
BATCHES = "batches"  # rows of the last steps
LEFT_BY_A_FAILED_START = {SETTINGS, PLAN, "logs"}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within the block a file of a run is written; a failure is an `RlinfError` that names it."""
    try:
        yield
    except OSError as err:
        raise RlinfError(f"cannot write {path}: {err.strerror}; free some space and resume the run") from err


def settings_of(run: Path, said: str = "", otherwise: str = "") -> Path:
    """The file with a run's settings. Raises `CheckpointError` where there is no run; `said` stands before
    the folder, `otherwise` is what may be named instead of one."""
    path = run / SETTINGS
    if not path.exists():
        raise CheckpointError(
            f"{said}{run}: there is no run here (no {SETTINGS}); name the folder of one{otherwise}"
        )
    return path


def refuse_used(output: Path) -> None:
    """Raise `ConfigError` if a new run cannot have this folder; what a failed start left is no obstacle."""
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"output: {output} is a file; name a folder")
    if {entry.name for entry in output.iterdir()} - LEFT_BY_A_FAILED_START:
        raise ConfigError(
            f"output: {output} is not empty; name another folder, or continue that run with --resume {output}"
        )


def clear_failed_start(output: Path, *, made: bool) -> None:
    """Remove what a new run wrote that failed before its first record, such as files of trackers, so that
    its folder can be used again. Its settings, its plan and its logs stay if a log says something; otherwise
    they go too, and the folder with them if the run made it."""
    if any((output / name).exists() for name in (METRICS, CHECKPOINTS)):
        return
    told = any(log.stat().st_size for log in (output / "logs").rglob("*") if log.is_file())
    for entry in output.iterdir():
        if not told or entry.name not in LEFT_BY_A_FAILED_START:
            real = entry.is_dir() and not entry.is_symlink()
            shutil.rmtree(entry) if real else entry.unlink()
    if made and not told:
        output.rmdir()


def claim(
    output: Path,
    config: RunConfig,
    dumped: Mapping[str, Any],  # Any: YAML values
    *,
    resume: bool,
) -> None:
    """Make the folder and write the run's settings into it, those of a resumed run only if they changed.

    Raises `ConfigError` where that is impossible.
    """
    target = output / SETTINGS
    if resume and dump(compose(Options(config=(target,)))) == dict(dumped):
        return
    draft = output / f".{SETTINGS}"
    try:
        output.mkdir(parents=True, exist_ok=True)
        draft.write_text(commented_yaml(config))
        draft.replace(target)
    except OSError as err:
        advice = "free some space, or resume on another disk" if resume else "name another folder"
        raise ConfigError(f"output: cannot write {target}: {err.strerror}; {advice}") from err


def put_in_place(draft: Path, final: Path) -> None:
    """Let a finished folder take the place of an older one. Raises `ConfigError`."""
    try:
        if final.is_dir():
            shutil.rmtree(final)
        draft.replace(final)
    except OSError as err:
        raise ConfigError(
            f"output: cannot write {final}: {err.strerror}; move away what is there and resume the run"
        ) from err
