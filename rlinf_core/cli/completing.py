"""What shells offer when the tab key is pressed: names from metadata and folders, without anything heavy."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from rlinf_core.config.options import recipe_names
from rlinf_core.config.schema import COMPONENT_LISTS, COMPONENTS
from rlinf_core.errors import PluginError, PluginNotFoundError
from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import OBSERVERS, SPECS, kind_named

DEPTH = 3  # of folders below the one that is typed, in which runs are looked for
MOST_FOLDERS = 2000  # that are looked into
OF_A_RUN = ("config.yaml", "plan.yaml")
KINDS = {**COMPONENTS, **COMPONENT_LISTS}  # flag -> kind of plugin


def one_of(words: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion by these words."""

    def offer(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offer


def plugins_of(flag: str) -> Callable[[str], list[str]]:
    """A completion by the names of the plugins that a flag names, without importing one."""

    def offer(incomplete: str) -> list[str]:
        return [name for name in plugins().names(KINDS[flag]) if name.startswith(incomplete)]

    return offer


def recipes(incomplete: str) -> list[str]:
    """Those that come with rlinf."""
    return one_of(recipe_names())(incomplete)


def run_folders(incomplete: str) -> list[str]:
    """Folders of runs, some levels below what is typed."""
    typed, _, start = incomplete.rpartition("/")
    typed = f"{typed}/" if "/" in incomplete else ""
    base = Path(os.path.expanduser(typed) or ".")
    found = (path.relative_to(base).as_posix() for path in _runs(base, start))
    return sorted(f"{typed}{name}" for name in found)


def steps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the checkpoints of the runs that the command names."""
    names = {
        path.name.removeprefix("step_")
        for run in _named_runs(ctx)
        for path in (run / "checkpoints").glob("[bls]*")
    }
    return one_of(sorted(names, key=lambda name: (len(name), name)))(incomplete)


def kept_steps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those whose rows the run has kept."""
    found = [
        path.name.removeprefix("step_") for run in _named_runs(ctx) for path in run.glob("batches/step_*")
    ]
    return one_of(sorted(found, key=lambda name: (len(name), name)))(incomplete)


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys once one is begun, and the values of a key that has few."""
    flag = next((name for name, value in ctx.params.items() if value == "=" and name in KINDS), "")
    if flag:  # `--algo=g`, of which bash makes three words
        return plugins_of(flag)(incomplete)
    before = [word for value in ctx.params.values() if isinstance(value, tuple | list) for word in value]
    key = _open_key(before, incomplete)
    if key:
        values = one_of(_values(ctx, key))(incomplete.rpartition("=")[2])
        return [f"{key}={value}" for value in values] if "=" in incomplete else values
    if not incomplete or "=" in incomplete:
        return []
    return [f"{name}=" for name, _ in _keys(ctx) if name.startswith(incomplete)]


def modes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of placement."""
    return one_of(_values(ctx, "mode"))(incomplete)


def run_or_settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """A run first, then settings."""
    return settings(ctx, incomplete) or run_folders(incomplete)


def kinds(incomplete: str) -> list[str]:
    """Of plugins."""
    return one_of((*SPECS, OBSERVERS))(incomplete)


def kind_and_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """`KIND NAME`, or a name alone."""
    named = [word for value in ctx.params.values() if isinstance(value, tuple | list) for word in value]
    known = [kind for kind in SPECS if named and _kind(named[0]) == kind]
    if len(named) > 1 or (named and not known):
        return []
    names = {name for kind in known or SPECS for name in plugins().names(kind)}
    return one_of(sorted(names if named else {*SPECS, *names}))(incomplete)


def _kind(text: str) -> str | None:
    """The kind that a word means, if it does."""
    try:
        return kind_named(text)
    except PluginNotFoundError:
        return None


def _runs(base: Path, start: str) -> Iterator[Path]:
    left = MOST_FOLDERS
    level = [path for path in _folders(base) if path.name.startswith(start)]
    for _ in range(DEPTH):
        below: list[Path] = []
        for path in level[: max(0, left)]:
            if all((path / name).is_file() for name in OF_A_RUN):
                yield path
            else:
                below += _folders(path)
        left -= len(level)
        level = below


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if not each.name.startswith(".") and each.is_dir())
    except OSError:  # nothing to offer there
        return []


def _named_runs(ctx: typer.Context) -> list[Path]:
    words: list[Any] = [*ctx.args]  # Any: as typer has read them; behind an open option it reads no arguments
    for value in ctx.params.values():
        words += value if isinstance(value, tuple | list) else [value]
    paths = [Path(os.path.expanduser(word)) for word in words if isinstance(word, str | Path) and str(word)]
    return [path for path in paths if (path / OF_A_RUN[0]).is_file()]


def _open_key(before: Sequence[str], incomplete: str) -> str:
    """The key whose value is being typed: in one word, or in bash, which parts words at `=`, in several."""
    if "=" in incomplete:
        return incomplete.partition("=")[0]
    words = list(before)
    if words and words[-1] == "=":
        words.pop()
    elif incomplete:
        return ""
    return words[-1] if words and "=" not in words[-1] else ""


def _keys(ctx: typer.Context) -> Iterator[tuple[str, str]]:
    """Every setting with its type; those of plugins where a flag names one."""
    from rlinf_core.config.describe import describe
    from rlinf_core.config.schema import SCALARS, SECTIONS, RunConfig

    whole = {item.name: item for item in describe(RunConfig)}
    yield from ((name, whole[name].type) for name in SCALARS)
    for section, cls in SECTIONS.items():
        yield from ((f"{section}.{item.name}", item.type) for item in describe(cls))
    for section, kind in COMPONENTS.items():
        name = ctx.params.get(section)
        with suppress(PluginError):  # of a broken one the command itself will tell
            chosen = describe(plugins().get(kind, name).config) if isinstance(name, str) else []
            yield from ((f"{section}.{item.name}", item.type) for item in chosen)


def _values(ctx: typer.Context, key: str) -> list[str]:
    written = dict(_keys(ctx)).get(key, "")
    if written == "bool":
        return ["true", "false"]
    if written.startswith("Literal[") and written.endswith("]"):
        return [str(value) for value in ast.literal_eval(written.removeprefix("Literal"))]
    return []
