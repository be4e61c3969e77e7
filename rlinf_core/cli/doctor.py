"""`rlinf doctor`: what this machine and installation have for runs, and what to do about what they lack."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from rlinf_core.cli.own_environments import possible_environments
from rlinf_core.cli.table import print_table
from rlinf_core.cluster.devices import inventory
from rlinf_core.isolation.environments import install_line
from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import OBSERVERS, SPECS

_GIB = 2**30
_SHARED = Path("/dev/shm")  # noqa: S108 - shared memory, which has this name
_SHARED_LEAST = 1 * _GIB  # samples, weights and pictures travel there
_DISK_LEAST = 5 * _GIB  # a few checkpoints of a small model
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` is empty where nothing is to be done."""

    part: Literal["machine", "version", "plugin", "environment"]
    name: str
    state: Literal["ok", "absent", "low", "broken"]
    detail: str
    advice: str = ""


def machine() -> Iterator[Finding]:
    """Cores, memory, GPUs, shared memory and the disk of the current folder."""
    found = inventory()
    yield Finding("machine", "system", "ok", platform.platform())
    yield Finding("machine", "cores", "ok", f"{len(found.cores)} that this process may use")
    yield Finding("machine", "memory", "ok", f"{found.memory_bytes / _GIB:.1f} GiB")
    for index, gpu in enumerate(found.cuda_devices):
        yield Finding("machine", f"gpu {index}", "ok", f"{gpu.name}, {gpu.memory_bytes / _GIB:.0f} GiB")
    if not found.cuda_devices:
        yield Finding("machine", "gpu", "absent", "none that torch sees", "runs go to CPU cores")
    if _SHARED.is_dir():
        yield _space("shared memory", _SHARED, _SHARED_LEAST, "in a container: docker run --shm-size=8g")
    yield _space("disk", Path(), _DISK_LEAST, "free some, or keep fewer checkpoints: checkpoint.keep=1")


def versions() -> Iterator[Finding]:
    """Python, and what the core and the installed plugins ask for."""
    yield Finding("version", "python", "ok", platform.python_version())
    offers = (info for kind in (*SPECS, OBSERVERS) for info in plugins().info(kind))
    distributions = sorted({"rlinf-core", *(info.distribution for info in offers)})
    wanted: dict[str, str] = {}  # a package and who asks for it
    for distribution in distributions:
        yield Finding("version", distribution, "ok", metadata.version(distribution))
        for package in _required(distribution):
            wanted.setdefault(package, distribution)
    for package, distribution in sorted(wanted.items()):
        if package in distributions:
            continue
        try:
            yield Finding("version", package, "ok", metadata.version(package))
        except metadata.PackageNotFoundError:
            missing = f"not installed, but {distribution} asks for it"
            yield Finding("version", package, "broken", missing, f"pip install {package}")


def health() -> Iterator[Finding]:
    """One line a kind of plugins, and one for each that is broken."""
    for kind in (*SPECS, OBSERVERS):
        found = plugins().info(kind)
        good = [info.name for info in found if info.status == "ok"]
        yield Finding("plugin", kind, "ok" if good else "absent", ", ".join(good) or "none")
        for info in found:
            if info.status != "ok":
                advice = f"pip install --force-reinstall {info.distribution}, or remove it"
                yield Finding("plugin", f"{kind} {info.name}", "broken", info.reason, advice)


def environments() -> Iterator[Finding]:
    """Environments of their own that plugins can have."""
    for spec, environment in possible_environments():
        name, folder = f"{spec.kind} {spec.name}", str(environment.folder)
        if environment.state == "ready":
            yield Finding("environment", name, "ok", folder)
        elif environment.state == "absent":
            yield Finding("environment", name, "absent", "not built", install_line(spec))
        else:
            advice = f"{install_line(spec)} --force"
            yield Finding("environment", name, "broken", f"{environment.state}: {folder}", advice)


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    comm: Annotated[
        bool, typer.Option("--comm", help="Measure messages and weights between processes instead.")
    ] = False,
) -> None:
    """Say what this machine and installation have for runs; exit code 1 if something is broken."""
    if comm:
        _measure(as_json)
        return
    found = [*machine(), *versions(), *health(), *environments()]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        rows = [(each.part, each.name, each.state, each.detail, each.advice) for each in found]
        print_table(("part", "name", "state", "detail", "what to do"), rows)
    if any(each.state == "broken" for each in found):
        raise typer.Exit(1)


def _measure(as_json: bool) -> None:
    """Between processes on all GPUs, or two on the CPU."""
    from rlinf_core.config.resolve import built_in
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


def _required(distribution: str) -> Iterator[str]:
    """Packages that a distribution cannot do without."""
    for line in metadata.requires(distribution) or ():
        found = _NAME.match(line)
        if found and "extra ==" not in line:
            yield found[0].lower().replace("_", "-")


def _space(name: str, folder: Path, least: int, advice: str) -> Finding:
    free = shutil.disk_usage(folder).free
    detail = f"{free / _GIB:.1f} GiB free in {os.path.abspath(folder)}"
    return Finding("machine", name, "low" if free < least else "ok", detail, advice if free < least else "")
