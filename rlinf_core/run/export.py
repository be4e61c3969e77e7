"""Writes the policy of a checkpoint in the model's own format, without the rest of its run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.errors import CheckpointError, ConfigError
from rlinf_core.roles.actor import ActorWorker
from rlinf_core.roles.environment import EnvironmentWorker
from rlinf_core.roles.policies import PoliciesWorker
from rlinf_core.run.checkpoint import BEST, LATEST, Checkpoint, CheckpointStore
from rlinf_core.run.output import CHECKPOINTS, put_in_place
from rlinf_core.run.resuming import refuse_other_backend
from rlinf_core.worker import WorkerContext

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.setup import Spaces


def find_checkpoint(run: Path, step: str) -> Checkpoint:
    """The `latest`, the `best` or that of a step. Raises `CheckpointError`."""
    store = CheckpointStore(run / CHECKPOINTS, keep=0)
    name = step if step in (LATEST, BEST) else f"step_{step}"
    path = store.root / name
    if not path.exists():
        there = ", ".join(sorted(found.name for found in store.root.glob("[bls]*"))) or "none"
        raise CheckpointError(f"--step {step}: {run} has no such checkpoint; there are {there}")
    return store.open(path.resolve())


def export(config: RunConfig, checkpoint: Checkpoint, output: Path, form: str = "") -> None:
    """On one device of this process; `form` is that of another program ("" = the model's own). Raises
    `ConfigError` for a folder that is not empty, and `ModelError` for a form that the model does not know."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output}: it is there already; name another folder")
    draft = output.with_name(f".{output.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    except OSError as err:
        raise ConfigError(f"--output {output}: cannot be written: {err.strerror}; name another") from err
    try:
        _export(config, checkpoint, draft, form)
        put_in_place(draft, output)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _export(config: RunConfig, checkpoint: Checkpoint, folder: Path, form: str) -> None:
    refuse_other_backend(checkpoint, config)
    kind = PoliciesWorker if config.policies else ActorWorker
    actor = kind(WorkerContext(name="actor[0]"), config, spaces=find_spaces(config))
    try:
        actor.trainer.load(checkpoint.path / "actor")
        actor.export(str(folder))
        if form:
            actor.model.convert_export(folder, form)
    finally:
        actor.close()


def find_spaces(config: RunConfig) -> Spaces | None:
    """What an embodied task's simulator shows and takes."""
    if config.simulator is None:
        return None
    alone = replace(config, env_pool=replace(config.env_pool, processes=0))
    environment = EnvironmentWorker(WorkerContext(name="environment[0]"), alone, num_envs=1)
    try:
        return environment.spaces()
    finally:
        environment.close()
