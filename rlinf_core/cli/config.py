"""`rlinf config`: the settings of a run with their origins, and the schema of all settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_core.cli.options import with_options
from rlinf_core.config.options import Options

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig

app = typer.Typer(
    add_completion=False, help="Show the settings of a run, and all settings there are.", no_args_is_help=True
)
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def show(options: Options, as_json: JsonFlag = False) -> None:
    """Print every setting of a run and where its value comes from; nothing is started.

    Takes the flags of `rlinf train`. The output is a recipe: `rlinf config show ... > my.yaml`.
    """
    from rlinf_core.config.check import check
    from rlinf_core.config.compose import compose
    from rlinf_core.config.dump import dump
    from rlinf_core.plugins import plugins
    from rlinf_core.run.machines import find_cluster
    from rlinf_core.run.placement import check_placement

    config = compose(options)
    if as_json:
        origins = dict(config.origins)
        typer.echo(json.dumps({"config": dump(config), "origins": origins}, indent=2))
    else:
        _print_yaml(config)
    warnings = check(config, plugins())
    if config.placement or config.plan:
        check_placement(config, find_cluster(config))
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


app.command("show")(with_options(show))


@app.command("schema")
def schema(as_json: JsonFlag = False) -> None:
    """Print every setting of the core and of the installed plugins."""
    from rlinf_core.config.json_schema import json_schema
    from rlinf_core.plugins import plugins

    made = json_schema(plugins())
    if as_json:
        typer.echo(json.dumps(made, indent=2))
    else:
        _print_settings(made)


def _print_yaml(config: RunConfig) -> None:
    """Plain when piped; on a terminal what is no default stands out."""
    from rlinf_core.config.show import commented_yaml

    text = commented_yaml(config)
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in text.splitlines():
        value, _, origin = line.rpartition("  # ")
        style = "dim" if origin == "default" else "green"
        shown = Text.assemble(value, "  ", (f"# {origin}", style)) if value else Text(line, "bold")
        console.print(shown, soft_wrap=True)


def _print_settings(made: dict[str, Any]) -> None:  # Any: JSON values
    from rlinf_core.config.show import settings_lines

    for line in settings_lines(made):
        typer.echo(line)
