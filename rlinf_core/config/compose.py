"""From the flags and recipes of a command to the settings of a run."""

from __future__ import annotations

import difflib
import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlinf_core.config.options import RECIPES, Options, recipe_names
from rlinf_core.config.reading.layers import Layer
from rlinf_core.config.resolve import (
    SpecSource,
    built_in,
    load_recipe,
    parse_override,
    resolve,
    resolve_component,
)
from rlinf_core.config.schema import Component, RunConfig
from rlinf_core.errors import ConfigError
from rlinf_core.plugins import plugins

TASK_SECTIONS = ("model", "data", "simulator", "reward")  # naming one of them sets the quickstart aside


def compose(options: Options, manager: SpecSource | None = None) -> RunConfig:
    """The settings of a run: defaults < recipes < flags < overrides. Raises `ConfigError`."""
    return resolve(layers(options), manager or plugins())


def simulator_of(options: Options, manager: SpecSource | None = None) -> Component:
    """The simulator alone that a command names. Raises `ConfigError`."""
    return resolve_component(layers(options), manager or plugins(), "simulator")


def layers(options: Options) -> list[Layer]:
    """All layers of a command, lowest first."""
    overrides = [parse_override(text) for text in options.overrides]
    recipes = [*_packaged(options.recipe), *(load_recipe(path) for path in options.config)]
    return [*default_layers(options, overrides), *recipes, *_flags(options), *overrides]


def default_layers(options: Options, overrides: list[Layer] | None = None) -> list[Layer]:
    """What every run starts from, and the quickstart where the user names no task."""
    base = [Layer(built_in()["layer"], "default")]
    named = any(getattr(options, section) for section in ("recipe", "config", *TASK_SECTIONS))
    if named or any(_names_task(layer.settings) for layer in overrides or []):
        return base
    return [*base, load_recipe(RECIPES / "quickstart.yaml", "quickstart recipe")]


def default_output(config: RunConfig) -> str:
    """`runs/ALGO-MODEL-TIME`, for a run whose user named no output; with a number behind it from the second
    run of a second on."""
    first = f"runs/{config.algo.name}-{config.model.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not Path(name).exists())


def with_output(config: RunConfig) -> RunConfig:
    """The same settings with an output folder named."""
    return config if config.output else replace(config, output=default_output(config))


def _packaged(name: str | None) -> list[Layer]:
    """The recipe of this name that comes with rlinf."""
    if name is None:
        return []
    known = recipe_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError(
            f"--recipe {name}: no recipe of this name comes with rlinf; there are {', '.join(known)}"
            + (f". Did you mean {near[0]}?" if near else "")
            + " (a file of your own goes by --config FILE)"
        )
    return [load_recipe(RECIPES / f"{name}.yaml", f"recipe {name}")]


def _names_task(settings: Mapping[str, Any]) -> bool:  # Any: YAML values
    """Whether an override names a component of the task, rather than an option of one."""
    for section in TASK_SECTIONS:
        value = settings.get(section)
        if isinstance(value, (str, list)) or (isinstance(value, Mapping) and "name" in value):
            return True
    return False


def _flags(options: Options) -> list[Layer]:
    said: list[tuple[str, Mapping[str, Any]]] = [
        (f"--{section}", {section: getattr(options, section)})
        for section in ("algo", "backend", "rollout", "model", "data", "simulator", "engine")
    ]
    said += [
        ("--address", {"engine": _set(address=options.address)}),
        ("--reward", {"reward": list(options.reward) or None}),
        ("--output", {"output": options.output}),
        ("--seed", {"seed": options.seed}),
        ("--ranks", {"ranks": options.ranks}),
        ("--mode", {"mode": options.mode}),
        ("--steps", {"train": _set(steps=options.steps)}),
        ("--lr", {"optimizer": _set(lr=options.lr)}),
        ("--lora-rank", {"lora": _set(rank=options.lora_rank)}),
        ("--group-size", {"algo": _set(group_size=options.group_size)}),
    ]
    return [Layer(tree, flag) for flag, tree in said if next(iter(tree.values())) is not None]


def _set(**values: Any) -> dict[str, Any] | None:
    given = {name: value for name, value in values.items() if value is not None}
    return given or None
