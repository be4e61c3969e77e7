"""`rlinf scale`: other numbers of ranks for a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlinf_core.cli.completing import run_folders
from rlinf_core.errors import ConfigError


def command(
    run: Annotated[
        Path, typer.Argument(help="Folder of the run.", metavar="RUN", autocompletion=run_folders)
    ],
    ranks: Annotated[list[str], typer.Argument(help="Ranks of components.", metavar="COMPONENT=N...")],
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait; then the request is withdrawn.")
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Give components of a run that goes on other numbers of ranks: rlinf scale RUN actor=2 rollout=3

    New processes start beside the run; between two steps it stops for a moment while state moves in memory.
    """
    from rlinf_core.run.scale_desk import ask

    answer = ask(run, _counts(ranks), timeout, lambda state: typer.echo(f"{run}: {state}", err=True))
    if as_json:
        typer.echo(json.dumps(answer))
    elif answer.get("error"):
        typer.echo(f"{run}: {answer['error']}")
    else:
        told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in answer["ranks"].items())
        typer.echo(
            f"{run}: {told} after step {answer['step']}: the run stopped for {answer['pause_s']:.2f} s, "
            f"{answer['moved_bytes'] / 2**20:.1f} MB moved"
        )


def _counts(words: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        name, equals, count = word.partition("=")
        if not (name and equals and count.isdecimal()):
            raise ConfigError(f"{word!r} is no COMPONENT=N, such as actor=2")
        if name in found:
            raise ConfigError(f"{name} is given twice")
        found[name] = int(count)
    return found
