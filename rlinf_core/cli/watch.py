"""`rlinf watch`: the report of runs that still train, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlinf_core.cli.completing import run_folders


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...", autocompletion=run_folders)
    ],
    port: Annotated[int, typer.Option("--port", help="On this machine; 0 = any that is free.")] = 6007,
    video_mb: Annotated[
        float, typer.Option("--video-mb", min=0.0, help="Of videos inside the page, the newest first.")
    ] = 20.0,
) -> None:
    """Serve the report of one or more runs at an address of this machine alone, until Ctrl-C.

    The page loads itself again when a run has gone on and nobody is reading in it.
    """
    from rlinf_core.report.serve import ReportServer

    with ReportServer(runs, port, video_mb) as server:
        typer.echo(f"watching at {server.address} (Ctrl-C ends it)")
        server.serve_forever()
