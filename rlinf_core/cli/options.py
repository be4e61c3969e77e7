"""The flags shared by the commands that compose a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from rlinf_core.cli.completing import modes, plugins_of, recipes, settings
from rlinf_core.config.options import Options, recipe_names

_TASK = "Task"
_RUN = "Run"


def _choice(flag: str, text: str) -> Any:  # Any: what typer puts into a signature
    offer = plugins_of(flag.removeprefix("--"))
    return typer.Option(flag, help=text, metavar="NAME", rich_help_panel=_TASK, autocompletion=offer)


SHARED: dict[str, Any] = {  # name of an Options field -> annotation; in the order of the help page
    "overrides": Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings by dotted key, such as algo.clip_ratio=0.1; see `rlinf config show`.",
            metavar="KEY=VALUE...",
            show_default=False,
            autocompletion=settings,
        ),
    ],
    "recipe": Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help=f"A recipe that comes with rlinf: {', '.join(recipe_names())}.",
            metavar="NAME",
            autocompletion=recipes,
        ),
    ],
    "config": Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", help="A recipe (YAML); repeatable, later ones win.", metavar="FILE"),
    ],
    "algo": Annotated[str | None, _choice("--algo", "Algorithm.")],
    "model": Annotated[str | None, _choice("--model", "Model plugin, or a path or hub id of a text model.")],
    "data": Annotated[str | None, _choice("--data", "Dataset plugin, or a file, directory or hub id.")],
    "reward": Annotated[
        list[str] | None, _choice("--reward", "Reward plugin, or module:function; repeatable.")
    ],
    "simulator": Annotated[str | None, _choice("--simulator", "Simulator, for an embodied task.")],
    "backend": Annotated[str | None, _choice("--backend", "Training backend.")],
    "rollout": Annotated[str | None, _choice("--rollout", "Rollout engine.")],
    "engine": Annotated[str | None, _choice("--engine", "Where worker processes run.")],
    "address": Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Of the cluster that the engine joins, host:port.",
            metavar="ADDRESS",
            rich_help_panel=_TASK,
        ),
    ],
    "output": Annotated[
        str | None,
        typer.Option("--output", "-o", help="Folder of the run.", metavar="RUN", rich_help_panel=_RUN),
    ],
    "seed": Annotated[int | None, typer.Option("--seed", help="Seed of everything.", rich_help_panel=_RUN)],
    "steps": Annotated[int | None, typer.Option("--steps", help="Training steps.", rich_help_panel=_RUN)],
    "ranks": Annotated[
        int | None,
        typer.Option("--ranks", help="Devices: GPUs, or on the CPU a few cores each.", rich_help_panel=_RUN),
    ],
    "mode": Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="auto (the fastest as measured), collocated, disaggregated or hybrid.",
            metavar="MODE",
            rich_help_panel=_RUN,
            autocompletion=modes,
        ),
    ],
    "lr": Annotated[float | None, typer.Option("--lr", help="Learning rate.", rich_help_panel=_RUN)],
    "lora_rank": Annotated[
        int | None, typer.Option("--lora-rank", help="Rank of adapters; 0 = none.", rich_help_panel=_RUN)
    ],
    "group_size": Annotated[
        int | None,
        typer.Option("--group-size", help="Samples per prompt or initial state.", rich_help_panel=_RUN),
    ],
}


def with_options(command: Callable[..., None], leave_out: Collection[str] = ()) -> Callable[..., None]:
    """Give a command the shared flags but for those to `leave_out`; its `options` parameter receives them as
    `Options`.

    ```python
    @with_options
    def command(options: Options, dry_run: Annotated[bool, typer.Option("--dry-run")] = False) -> None: ...
    ```
    """
    own = inspect.signature(command, eval_str=True).parameters
    taken = {name: annotation for name, annotation in SHARED.items() if name not in leave_out}
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in taken.items()
    ]
    extra = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in own.items()
        if name != "options"
    ]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        said = {name: given.pop(name) for name in taken}
        command(options=_options(said), **given)

    wrapped.__signature__ = inspect.Signature([*shared, *extra])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in [*shared, *extra]}
    del wrapped.__wrapped__  # typer would read the signature of `command`
    return wrapped


def _options(said: dict[str, Any]) -> Options:
    """Any: the values as typer read them, None where a flag was not given."""
    repeatable = {item.name for item in fields(Options) if item.default == ()}
    values: dict[str, Any] = {
        name: tuple(value or ()) if name in repeatable else value for name, value in said.items()
    }
    return Options(**values)
