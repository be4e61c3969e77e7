"""`rlinf plugins`: what is installed, what it promises, whether it keeps it, and a start for a new one."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_core.cli.completing import kind_and_name, kinds
from rlinf_core.cli.own_environments import possible_environments
from rlinf_core.cli.table import print_table
from rlinf_core.errors import ConfigError, PluginNotFoundError, suggest
from rlinf_core.plugins import PluginInfo, RolloutSpec, SimulatorSpec, plugins
from rlinf_core.plugins.kinds import OBSERVERS, SPECS, kind_named

if TYPE_CHECKING:
    from rlinf_core.testing.checks import CheckResult

app = typer.Typer(add_completion=False, help="List, show, check and start plugins.", no_args_is_help=True)
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KindArgument = Annotated[
    str, typer.Argument(help=f"One of {', '.join(SPECS)}.", metavar="KIND", autocompletion=kinds)
]
NamedArguments = Annotated[list[str], typer.Argument(metavar="[KIND] NAME", autocompletion=kind_and_name)]

BASE_FIELDS = ("name", "summary", "target", "config", "api", "example", "needs", "isolation")


@app.command("list")
def list_plugins(
    kind: Annotated[
        str | None, typer.Argument(help="Only this kind.", metavar="KIND", autocompletion=kinds)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List installed plugins, the broken ones included."""
    kinds = [kind_named(kind)] if kind else [*SPECS, OBSERVERS]
    found = [info for each in kinds for info in plugins().info(each)]
    if as_json:
        typer.echo(json.dumps([info.as_dict() for info in found], indent=2))
        return
    rows = [
        (
            info.kind,
            info.name,
            info.summary or info.reason,
            f"{info.distribution} {info.version}",
            info.status,
        )
        for info in found
    ]
    print_table(("kind", "name", "summary", "distribution", "status"), rows)


@app.command("show")
def show(named: NamedArguments, as_json: JsonFlag = False) -> None:
    """Show one plugin: its summary, settings, and what it needs or provides."""
    info = _find(named)
    described = _described(info)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    typer.echo(f"{info.name}: {described['summary']}")
    for key in ("kind", "distribution", "version", "target", "api"):
        typer.echo(f"  {key}: {described[key]}")
    for heading in ("needs", "provides"):
        if described[heading]:
            typer.echo(f"  {heading}: " + ", ".join(f"{k}={v}" for k, v in described[heading].items()))
    if described["config"]:
        rows = [
            (
                item["name"],
                item["type"],
                json.dumps(item["default"]) if "default" in item else "required",
                item["doc"],
            )
            for item in described["config"]
        ]
        print_table(("setting", "type", "default", "meaning"), rows)


@app.command("check")
def check(
    named: Annotated[
        list[str], typer.Argument(metavar="[KIND] NAME [KEY=VALUE...]", autocompletion=kind_and_name)
    ],
    as_json: JsonFlag = False,
) -> None:
    """Run the conformance checks of a plugin; exit code 1 if one fails.

    KEY=VALUE changes a setting of the plugin for the checks; values are JSON or plain text. A plugin
    that has an environment of its own is checked there.
    """
    from rlinf_core.isolation import interpreter
    from rlinf_core.testing.checks import run_checks
    from rlinf_core.testing.subject import subject

    info = _find([text for text in named if "=" not in text])
    settings = _settings(info, [text for text in named if "=" in text])
    results = []
    may = info.kind in (SimulatorSpec.kind, RolloutSpec.kind)
    apart = may and interpreter(plugins().get(info.kind, info.name)) is not None
    for result in run_checks(subject(info.kind, info.name, settings, isolated=apart)):
        results.append(result)
        if not as_json:
            _print_result(result)
    if as_json:
        typer.echo(json.dumps([asdict(result) for result in results], indent=2))
    failed = sum(result.outcome == "failed" for result in results)
    if not as_json:
        typer.echo(
            f"{info.kind} {info.name}: {len(results) - failed} of {len(results)} checks passed or skipped"
        )
    if failed:
        raise typer.Exit(1)


@app.command("new")
def new(
    kind: KindArgument,
    name: Annotated[str, typer.Argument(help="What users will type.", metavar="NAME")],
    path: Annotated[Path, typer.Option("--path", help="The folder to put it into.", metavar="DIR")] = Path(),
) -> None:
    """Write a complete, working plugin package to start from."""
    from rlinf_core.testing.scaffold import scaffold

    made = scaffold(kind_named(kind), name, path)
    typer.echo(f"wrote {made}")
    typer.echo(f"next: pip install -e {made} && rlinf plugins check {kind_named(kind)} {name}")


@app.command("install")
def install(
    named: NamedArguments,
    isolated: Annotated[bool, typer.Option("--isolated", help="An environment of its own.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Build it anew.")] = False,
) -> None:
    """Build the environment of its own that a plugin runs in, from the plugin's tested lock."""
    from rlinf_core.isolation import build

    info = _find(named)
    spec = plugins().get(info.kind, info.name)
    if not isolated:
        raise ConfigError(
            f"{info.kind} plugin {info.name!r} is installed ({info.distribution} {info.version}); "
            "--isolated builds an environment of its own for what it runs"
        )
    made = build(spec, force=force, say=typer.echo)
    typer.echo(f"{info.kind} {info.name} runs in {made.folder} from now on; removing that folder undoes it")


@app.command("environments")
def environments(as_json: JsonFlag = False) -> None:
    """List plugins that can have an environment of their own, and the state of it."""
    possible = possible_environments()
    found = [(spec.kind, spec.name, own.state, str(own.folder)) for spec, own in possible]
    columns = ("kind", "name", "state", "folder")
    if as_json:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in found], indent=2))
    else:
        print_table(columns, found)


def _find(named: list[str]) -> PluginInfo:
    """The plugin meant by `[KIND] NAME`; a name alone must belong to one kind."""
    if len(named) not in (1, 2):
        raise ConfigError("name a plugin as [KIND] NAME, for example: rlinf plugins show algorithms NAME")
    kinds = [kind_named(named[0])] if len(named) == 2 else list(SPECS)
    name = named[-1]
    matching = [kind for kind in kinds if name in plugins().names(kind)]
    if len(matching) > 1:
        raise ConfigError(f"{name!r} is a plugin of several kinds: {', '.join(matching)}; say KIND {name}")
    if len(named) == 1 and not matching:
        known = sorted({each for kind in kinds for each in plugins().names(kind)})
        raise PluginNotFoundError(f"no plugin {name!r}; installed: {', '.join(known)}.{suggest(name, known)}")
    kind = matching[0] if matching else kinds[0]
    plugins().get(kind, name)  # raises what is wrong with it
    return next(info for info in plugins().info(kind) if info.name == name)


def _described(info: PluginInfo) -> dict[str, Any]:  # Any: JSON values
    from rlinf_core.config.describe import describe

    spec = plugins().get(info.kind, info.name)
    provides = {
        item.name: getattr(spec, item.name)
        for item in fields(spec)
        if item.name not in (*BASE_FIELDS, "provides")
    }
    if hasattr(spec, "provides"):
        provides |= asdict(spec.provides)
    return {
        **{key: info.as_dict()[key] for key in ("kind", "name", "summary", "distribution", "version")},
        "target": spec.target,
        "api": spec.api,
        "needs": _needs(spec),
        "provides": {key: _jsonable(value) for key, value in provides.items()},
        "config": [
            {"name": item.name, "type": item.type, "doc": item.doc}
            | ({} if item.default is MISSING else {"default": _jsonable(item.default)})
            for item in describe(spec.config)
        ],
    }


def _needs(spec: Any) -> dict[str, Any]:  # Any: a spec; JSON values
    """With default settings; nothing if there are settings without a default."""
    required = any(i.default is MISSING and i.default_factory is MISSING for i in fields(spec.config))
    return {} if required or not hasattr(spec, "needs") else asdict(spec.needs(spec.config()))


def _jsonable(value: Any) -> Any:  # Any: the default of a setting, and its JSON form
    if is_dataclass(value) and not isinstance(value, type):
        return {key: _jsonable(each) for key, each in asdict(value).items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _jsonable(each) for key, each in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _settings(info: PluginInfo, given: list[str]) -> dict[str, Any]:  # Any: values of settings
    known = [item.name for item in fields(plugins().get(info.kind, info.name).config)]
    found: dict[str, Any] = {}
    for text in given:
        key, _, value = text.partition("=")
        if key not in known:
            raise ConfigError(
                f"{info.kind} plugin {info.name!r} has no setting {key!r}; settings: "
                f"{', '.join(known) or 'none'}.{suggest(key, known)}"
            )
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def _print_result(result: CheckResult) -> None:
    typer.echo(f"{result.outcome:8} {result.name}: {result.promise}")
    if result.message:
        typer.echo(f"         {result.message}")
