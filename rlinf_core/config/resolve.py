"""From layers of settings to a `RunConfig`; the only module that knows the YAML library."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlinf_core.config.options import DEFAULTS, RECIPES
from rlinf_core.config.reading.convert import convert, convert_field
from rlinf_core.config.reading.derived import inherited, with_prompts
from rlinf_core.config.reading.layers import Layer, Merged, Tree, merge
from rlinf_core.config.reading.policies import policy_components, read_policies
from rlinf_core.config.reading.shorthands import Shorthands
from rlinf_core.config.schema import (
    COMPONENT_LISTS,
    COMPONENTS,
    POLICY_SECTIONS,
    SCALARS,
    SECTIONS,
    Component,
    RunConfig,
    WeightedReward,
)
from rlinf_core.errors import ConfigError, PluginNotFoundError

REQUIRED = ("algo", "backend", "model", "engine")
PLAIN_LISTS = ("trackers", "tools")  # components without a weight


class SpecSource(Protocol):
    """What this room needs of the plugin manager. Any: the spec's class differs by kind."""

    def get(self, kind: str, name: str) -> Any: ...

    def names(self, kind: str) -> list[str]: ...


def load_recipe(path: Path, origin: str = "") -> Layer:
    """A YAML file as a layer. Raises `ConfigError` that names the file, and the line of a syntax error."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"recipe {path} does not exist (looked in {Path.cwd()})") from None
    except IsADirectoryError:
        raise ConfigError(f"recipe {path} is a directory; name a YAML file in it") from None
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path} cannot be read as YAML: {err}") from err
    return Layer(parse_yaml(text, str(path), "a recipe"), origin or str(path), path.parent)


def parse_yaml(text: str, origin: str, what: str) -> Tree:
    """A mapping in YAML. Raises `ConfigError` that names the origin, and the line of a syntax error."""
    try:
        loaded = OmegaConf.load(io.StringIO(text))
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + 1 if err.problem_mark else 0
        raise ConfigError(f"{origin}, line {line}: not valid YAML: {err.problem}") from err
    except (OSError, yaml.YAMLError, OmegaConfBaseException) as err:
        raise ConfigError(f"{origin} cannot be read as YAML: {err}") from err
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{origin}: {what} is a mapping of keys to values, this is a list")
    return _plain(loaded)


def _plain(loaded: DictConfig, resolve: bool = False) -> Tree:
    container = OmegaConf.to_container(loaded, resolve=resolve)
    return {str(key): value for key, value in container.items()} if isinstance(container, dict) else {}


def parse_override(text: str) -> Layer:
    """`train.steps=5` as a layer; the value is YAML. Raises `ConfigError`."""
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r} is not an override; write KEY=VALUE, such as train.steps=20")
    try:
        parsed = _plain(OmegaConf.from_dotlist([text]))
    except (yaml.YAMLError, OmegaConfBaseException) as err:
        reason = getattr(err, "problem", None) or str(err).splitlines()[0]
        raise ConfigError(f"override {text!r}: the value is not valid YAML: {reason}") from err
    return Layer(parsed, "override")


@cache
def built_in() -> Tree:
    """`recipes/defaults.yaml`: the lowest layer and the plugins of shorthands."""
    return dict(load_recipe(RECIPES / f"{DEFAULTS}.yaml").settings)


def resolve(layers: Sequence[Layer], manager: SpecSource) -> RunConfig:
    """Merge layers, lowest first, into a typed config.

    Raises `ConfigError` with one line for each problem of the whole composition, and `PluginError` for
    a broken plugin.
    """
    shorthands = Shorthands(built_in()["shorthands"], _installed(manager))
    merged = merge(layers, shorthands)
    suggested = _suggested(merged, manager)
    if suggested:
        merged = merge([*layers[:1], suggested, *layers[1:]], shorthands)
    merged.tree = _interpolate(merged.tree)
    config = _Resolver(merged, manager).run()
    if config is None or merged.problems:
        raise ConfigError("\n".join(dict.fromkeys(merged.problems)))
    return config


def resolve_component(layers: Sequence[Layer], manager: SpecSource, section: str) -> Component:
    """One component alone, whatever the rest of a run would be. Raises `ConfigError`."""
    merged = merge(layers, Shorthands(built_in()["shorthands"], _installed(manager)))
    merged.tree = _interpolate(merged.tree)
    component = _Resolver(merged, manager).component(section, COMPONENTS[section], merged.tree.get(section))
    if component is None or merged.problems:
        raise ConfigError("\n".join(dict.fromkeys(merged.problems)))
    return component


def _suggested(merged: Merged, manager: SpecSource) -> Layer | None:
    """The settings that the chosen model suggests; they stand right above the defaults."""
    name = merged.tree.get("model", {}).get("name")
    if name not in manager.names(COMPONENTS["model"]):
        return None
    suggests: Mapping[str, Any] = manager.get(COMPONENTS["model"], name).suggests
    return Layer(suggests, f"model {name}") if suggests else None


def _installed(manager: SpecSource) -> Any:
    kinds = {**COMPONENTS, **COMPONENT_LISTS}
    return lambda section, name: name in manager.names(kinds[section])


def _interpolate(tree: Tree) -> Tree:
    """`${train.steps}` and `${oc.env:HOME}` replaced by their values."""
    try:
        return _plain(OmegaConf.create(tree), resolve=True)
    except (OmegaConfBaseException, ValueError) as err:
        where = getattr(err, "full_key", "") or "settings"
        reason = str(err).splitlines()[0]
        raise ConfigError(f"{where}: {reason} (a literal '${{' is written '\\${{')") from err


class _Resolver:
    """Builds the parts of a `RunConfig`; problems gather in `merged`."""

    def __init__(self, merged: Merged, manager: SpecSource) -> None:
        self.merged = merged
        self.tree = merged.tree
        self.manager = manager

    def run(self) -> RunConfig | None:
        parts: dict[str, Any] = {}  # Any: the fields of RunConfig
        for section, kind in COMPONENTS.items():
            parts[section] = self.component(section, kind, self.tree.get(section), section in REQUIRED)
        if parts["rollout"] is None and "rollout" not in self.tree and "simulator" not in self.tree:
            parts["rollout"] = self._default_rollout(parts["backend"])
        parts["rewards"] = self._rewards()
        for section in PLAIN_LISTS:
            parts[section] = self._listed(section)
        for section, cls in SECTIONS.items():
            parts[section] = convert(cls, self.tree.get(section, {}), section, section, self.merged)
        parts |= self._scalars()
        if not self.merged.problems:
            parts["policies"] = read_policies(
                parts, self.merged, lambda key, section, tree: self.component(key, COMPONENTS[section], tree)
            )
        if not self.merged.problems:
            parts |= self._derived(parts)
        if self.merged.problems:
            return None
        config = RunConfig(**parts, origins={})
        return RunConfig(**parts, origins=self._origins(config))

    def _derived(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        algo: Component = parts["algo"]
        group_size = self.manager.get(algo.kind, algo.name).needs(algo.config).group_size
        train = with_prompts(parts["train"], group_size, self.merged)
        return {"train": train, **inherited(parts, self.merged)}

    def component(self, key: str, kind: str, tree: Tree | None, required: bool = True) -> Component | None:
        """None if it is not there, or after adding to the problems."""
        if not tree and not required:
            return None
        name = (tree or {}).get("name")
        if not isinstance(name, str) or not name:
            self._unnamed(key, kind, name)
            return None
        try:
            spec = self.manager.get(kind, name)
        except PluginNotFoundError as err:
            self._problem(f"{key}{self.merged.came(f'{key}.name')}: {err}")
            return None
        options = {option: value for option, value in (tree or {}).items() if option != "name"}
        config = convert(spec.config, options, key, name, self.merged)
        return None if config is None else Component(kind, name, config)

    def _unnamed(self, key: str, kind: str, name: Any) -> None:
        installed = ", ".join(self.manager.names(kind)) or "none"
        section = key.partition(".")[0]
        given = "no plugin is named" if name is None else f"a plugin's name is a text, got {name!r}"
        origin = self.merged.came(key)
        self._problem(f"{key}: {given}{origin}; installed: {installed}. Choose one by {section}=NAME")

    def _default_rollout(self, backend: Component | None) -> Component | None:
        """The rollout engine that the backend names."""
        if backend is None:
            return None
        name = self.manager.get(backend.kind, backend.name).rollout
        return self.component("rollout", COMPONENTS["rollout"], {"name": name}) if name else None

    def _rewards(self) -> tuple[WeightedReward, ...]:
        rewards = []
        for index, tree in enumerate(self.tree.get("reward", [])):
            key = f"reward.{index}"
            options = dict(tree)
            weight = options.pop("weight", 1.0)
            component = self.component(key, COMPONENT_LISTS["reward"], options)
            if isinstance(weight, bool) or not isinstance(weight, (int, float)):
                self._problem(f"{key}.weight: needs a number, got {weight!r}{self.merged.came(key)}")
            elif component is not None:
                rewards.append(WeightedReward(component, float(weight)))
        return tuple(rewards)

    def _listed(self, section: str) -> tuple[Component, ...]:
        trees = enumerate(self.tree.get(section, []))
        made = [self.component(f"{section}.{index}", COMPONENT_LISTS[section], tree) for index, tree in trees]
        return tuple(component for component in made if component is not None)

    def _scalars(self) -> Tree:
        made: Tree = {}
        for key in SCALARS:
            if self.tree.get(key) is not None:
                made |= convert_field(RunConfig, key, self.tree[key], key, key, self.merged)
        return made

    def _origins(self, config: RunConfig) -> dict[str, str]:
        """The origin of every dotted key, the keys of defaults included."""
        origins: dict[str, str] = {}
        for key, component in components(config):
            origins[f"{key}.name"] = self.merged.origin(f"{key}.name")
            self._note(component.config, key, origins)
        for index in range(len(config.rewards)):
            origins[f"reward.{index}.weight"] = self.merged.origin(f"reward.{index}.weight")
        for section in PLAIN_LISTS:
            if not getattr(config, section):
                origins[section] = self.merged.origin(section)
        for section in SECTIONS:
            self._note(getattr(config, section), section, origins)
        for name, policy in config.policies.items():
            for section in POLICY_SECTIONS:
                self._note(getattr(policy, section), f"policies.{name}.{section}", origins)
            origins[f"policies.{name}.warm_start"] = self.merged.origin(f"policies.{name}.warm_start")
        for key in SCALARS:
            value = getattr(config, key)
            below = [f"{key}.{name}" for name in value] if isinstance(value, Mapping) else []
            origins |= {each: self.merged.origin(each) for each in below or [key]}
        return origins

    def _note(self, settings: Any, key: str, origins: dict[str, str]) -> None:
        for item in fields(settings):
            here = f"{key}.{item.name}"
            value = getattr(settings, item.name)
            if is_dataclass(value):
                self._note(value, here, origins)
            else:
                origins[here] = self.merged.origin(here)

    def _problem(self, text: str) -> None:
        self.merged.problems.append(text)


def components(config: RunConfig) -> list[tuple[str, Component]]:
    """Every component of a run with its dotted key."""
    single = [(section, getattr(config, section)) for section in COMPONENTS]
    found = [(key, component) for key, component in single if component is not None]
    found += [(f"reward.{index}", reward.component) for index, reward in enumerate(config.rewards)]
    found += policy_components(config.policies)
    listed = [(section, getattr(config, section)) for section in PLAIN_LISTS]
    return found + [(f"{section}.{i}", each) for section, made in listed for i, each in enumerate(made)]
