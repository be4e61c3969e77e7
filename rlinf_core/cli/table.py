"""Tables for people, and tab-separated lines where the output is piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below their heads; piped, the rows alone."""
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
