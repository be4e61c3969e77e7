"""`rlinf train`: compose a run from recipes, flags and overrides, and run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_core.cli.completing import run_folders
from rlinf_core.cli.options import with_options
from rlinf_core.config.options import Options
from rlinf_core.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from rlinf_core.api import Engine
    from rlinf_core.config.schema import RunConfig

PLACED = ("mode", "placement", "plan", "schedule")  # where it runs, not what comes out
FREE = ("train.steps", "eval", "checkpoint", "trackers", "reward_pool", "output", "engine", *PLACED)
INTERRUPTED = 130  # the exit code of a command ended by Ctrl-C
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Continue this run from its latest checkpoint.",
        metavar="RUN",
        autocompletion=run_folders,
    ),
]
AllowChanges = Annotated[
    bool, typer.Option("--allow-changes", help="Resume although settings or data differ from the run's.")
]


@with_options
def command(
    options: Options,
    resume: Resume = None,
    allow_changes: AllowChanges = False,
) -> None:
    """Train a policy.

    Without a task, a tiny model learns to sort digits: rlinf train --algo grpo --backend fsdp
    """
    train(options, resume, allow_changes=allow_changes)


def train(options: Options, resume: Path | None = None, *, allow_changes: bool = False) -> None:
    """Compose, check and run. Raises `RlinfError` for whatever a user can mend."""
    from rlinf_core.config.check import check
    from rlinf_core.config.check_isolation import require_packages
    from rlinf_core.config.compose import compose, with_output
    from rlinf_core.config.dump import dump
    from rlinf_core.plugins import plugins
    from rlinf_core.roles.setup import build
    from rlinf_core.run.machines import find_machines
    from rlinf_core.run.placement import check_placement

    if resume is not None:
        options = _resumed(options, resume)
    config = with_output(compose(options))
    engine: Engine = build(config.engine)
    cluster = find_machines(config, engine).cluster
    warnings = check(config, plugins(), cluster.size)
    check_placement(config, cluster)
    require_packages(config, plugins())
    dumped = dump(config)
    if resume is not None and not allow_changes:
        _refuse_changes(resume, dumped)
    _run(config, dumped, warnings, engine, resume=resume is not None, allow_changes=allow_changes)


def _run(
    config: RunConfig,
    dumped: Mapping[str, Any],
    warnings: list[str],
    engine: Engine,
    *,
    resume: bool,
    allow_changes: bool,
) -> None:
    from rlinf_core.run.exhaustion import explained
    from rlinf_core.run.restarts import run_with_restarts
    from rlinf_core.run.view import View

    with View(config) as view:
        for warning in warnings:
            view.warn(warning)
        try:
            summary = run_with_restarts(
                config, dumped, view, engine, resume=resume, allow_changes=allow_changes
            )
        except (WorkerError, MemoryError) as err:
            told = explained(err, config)
            if told is err:
                raise
            raise told from err
        except KeyboardInterrupt:
            view.stopped(resumable=(Path(config.output) / "config.yaml").exists())
            raise typer.Exit(INTERRUPTED) from None
        view.end(summary)
    if summary.interrupted:
        raise typer.Exit(INTERRUPTED)


def _resumed(options: Options, run: Path) -> Options:
    from rlinf_core.run.output import settings_of

    recipe = settings_of(run, said="--resume ")
    if options.output and Path(options.output) != run:
        raise ConfigError(
            f"--output {options.output} beside --resume {run}: a run continues in its folder; drop --output"
        )
    return replace(options, config=(recipe, *options.config), output=str(run))


def _refuse_changes(run: Path, dumped: Mapping[str, Any]) -> None:
    """A resumed run repeats the settings that its result depends on."""
    from rlinf_core.config.compose import compose
    from rlinf_core.config.dump import diff, dump
    from rlinf_core.config.schema import used

    before = dump(compose(Options(config=(run / "config.yaml",))))
    changed = {key: values for key, values in diff(before, dumped).items() if used(key, FREE)}
    if changed:
        lines = "\n".join(f"  {key}: {old!r} -> {new!r}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"--resume {run}: these settings differ from the run's:\n{lines}\n"
            "drop them, or pass --allow-changes to continue with the new ones"
        )
