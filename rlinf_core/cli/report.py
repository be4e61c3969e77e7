"""`rlinf report`: runs as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlinf_core.cli.completing import run_folders


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...", autocompletion=run_folders)
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; RUN/report.html.", metavar="FILE")
    ] = None,
    video_mb: Annotated[
        float, typer.Option("--video-mb", min=0.0, help="Of videos inside the file, the newest first.")
    ] = 20.0,
) -> None:
    """Curves, samples, episodes, timeline, plan and settings of one or more runs, in one HTML file.

    It needs no network. Runs that still train can be reported too.
    """
    from rlinf_core.report.page import page, write_page
    from rlinf_core.report.reading import read_run

    target = output or runs[0] / "report.html"
    write_page(target, page([read_run(run) for run in runs], video_mb=video_mb))
    typer.echo(f"report of {len(runs)} run{'s' if len(runs) > 1 else ''} written to {target}")
