"""`rlinf doctor`: what this machine and installation have for runs, and what to do about what they lack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_core.cli.own_environments import possible_environments
from rlinf_core.cli.table import print_table

if TYPE_CHECKING:
    from rlinf_core.checkup.finding import Finding


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    comm: Annotated[
        bool, typer.Option("--comm", help="Measure messages and weights between processes instead.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Load no plugin, draw no picture, measure no disk.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of runs, whose disk is meant.", metavar="DIR"),
    ] = None,
) -> None:
    """Say what this machine and installation have for runs; exit code 1 if something is broken."""
    if comm:
        _measure(as_json)
        return
    with _status(quiet=as_json):
        found = list(_findings(output or Path(), quick=quick))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        rows = [(each.part, each.name, each.state, each.detail, each.advice) for each in found]
        print_table(("part", "name", "state", "detail", "what to do"), rows)
    if any(each.state == "broken" for each in found):
        raise typer.Exit(1)


def _findings(output: Path, *, quick: bool) -> Iterator[Finding]:
    from rlinf_core.checkup.drawing import drawing
    from rlinf_core.checkup.health import health, loading
    from rlinf_core.checkup.machine import disk_speed, limits, machine
    from rlinf_core.checkup.packages import versions

    folder = next(path for path in (output, *output.absolute().parents) if path.is_dir())  # to be made there
    yield from machine(folder)
    if not quick:
        yield disk_speed(folder)
    yield from limits()
    yield from versions()
    yield from health()
    if not quick:
        yield from loading()
    yield from _environments()
    if not quick:
        yield from drawing()


def _status(*, quiet: bool) -> Any:
    """Something that moves, on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return nullcontext() if quiet or not console.is_terminal else console.status("looking around")


def _environments() -> Iterator[Finding]:
    """Environments of their own that plugins can have."""
    from rlinf_core.checkup.finding import Finding
    from rlinf_core.isolation.environments import install_line

    for spec, environment in possible_environments():
        name, folder = f"{spec.kind} {spec.name}", str(environment.folder)
        if environment.state == "ready":
            yield Finding("environment", name, "ok", folder)
        elif environment.state == "absent":
            yield Finding("environment", name, "absent", "not built", install_line(spec))
        else:
            advice = f"{install_line(spec)} --force"
            yield Finding("environment", name, "broken", f"{environment.state}: {folder}", advice)


def _measure(as_json: bool) -> None:
    """Between processes on all GPUs, or two on the CPU."""
    from rlinf_core.cluster.devices import inventory
    from rlinf_core.config.resolve import built_in
    from rlinf_core.plugins import plugins
    from rlinf_core.run.links import matrix

    spec = plugins().get("engines", built_in()["layer"]["engine"])
    count = len(inventory().cuda_devices)
    devices = [f"cuda:{number}" for number in range(count)] or ["cpu", "cpu"]
    pairs = list(matrix(spec.load()(spec.config()), devices))
    if as_json:
        typer.echo(json.dumps([{**asdict(pair), "gb_per_s": pair.gb_per_s} for pair in pairs], indent=2))
        return
    rows = [
        (p.sender, p.receiver, p.way, f"{p.message_ms:.2f}", f"{p.update_ms:.1f}", f"{p.gb_per_s:.1f}")
        for p in pairs
    ]
    print_table(("from", "to", "way", "message ms", "64 MB of weights ms", "GB/s"), rows)
