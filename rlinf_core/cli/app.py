"""The command `rlinf`: subcommands imported when they are used, and errors in plain words."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command as as_command

from rlinf_core import __version__
from rlinf_core.errors import RlinfError, WorkerError
from rlinf_core.leaving import leave

COMMANDS = (
    "train",
    "sft",
    "plan",
    "export",
    "eval",
    "compare",
    "replay",
    "report",
    "watch",
    "scale",
    "demos",
    "config",
    "plugins",
    "doctor",
)  # modules here with `app` or `command`
INTERRUPTED = 130


class _LazyCommands(TyperGroup):
    """Finds a subcommand in the module of its name."""

    def list_commands(self, ctx: Any) -> list[str]:  # Any: click's context
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # Any: click's context and command
        return _load(cmd_name) if cmd_name in COMMANDS else None


def _load(name: str) -> Any:  # Any: a click command
    module = importlib.import_module(f"rlinf_core.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False)
        app.command(name)(module.command)
    command = as_command(app)
    command.name = name
    return command


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rlinf {__version__}")
        raise typer.Exit()


app = typer.Typer(cls=_LazyCommands, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def rlinf(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Reinforcement-learning post-training for language models and robot policies."""


def main() -> None:
    """Run the command line; a user's mistake ends with a message and never with a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except RlinfError as err:
        sys.exit(report(err))


def run() -> NoReturn:
    """The command `rlinf`: `main`, and a quick end of the process."""
    try:
        main()
    except SystemExit as end:
        leave(int(end.code or 0))
    leave(0)


def report(err: RlinfError) -> int:
    """Print the error and return the exit code: 1 for a failed worker, 2 for what the user can mend."""
    if isinstance(err, WorkerError) and isinstance(err.__cause__, RlinfError):
        err = err.__cause__  # a user's mistake that came to light in a worker
    if isinstance(err, WorkerError) and err.traceback:
        typer.echo(err.traceback.rstrip(), err=True)
    typer.echo(f"error: {err}", err=True)
    return 1 if isinstance(err, WorkerError) else 2
