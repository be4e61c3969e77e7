"""`rlinf export`: the policy of a checkpoint as a model directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlinf_core.cli.completing import run_folders, steps


def command(
    run: Annotated[
        Path, typer.Argument(help="Folder of the run.", metavar="RUN", autocompletion=run_folders)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the model.", metavar="DIR")],
    step: Annotated[
        str,
        typer.Option(
            "--step",
            help="Of the checkpoint: a number, latest or best.",
            metavar="STEP",
            autocompletion=steps,
        ),
    ] = "latest",
    form: Annotated[
        str,
        typer.Option(
            "--format", help="Of another program, such as lerobot, where the model can.", metavar="NAME"
        ),
    ] = "",
) -> None:
    """Write the policy of a checkpoint in the model's own format.

    A run does so at its end (RUN/export); this is for runs that go on, and for earlier or better checkpoints.
    """
    from rlinf_core.config.compose import compose
    from rlinf_core.config.options import Options
    from rlinf_core.run.export import export, find_checkpoint
    from rlinf_core.run.output import settings_of

    config = compose(Options(config=(settings_of(run),), output=str(run)))
    checkpoint = find_checkpoint(run, step)
    export(config, checkpoint, output, form)
    typer.echo(f"policy of step {checkpoint.step} written to {output}")
