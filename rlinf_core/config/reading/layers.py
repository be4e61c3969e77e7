"""Lays sections of settings over one another and remembers where each value came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_core.cluster.placement import component_names
from rlinf_core.config.reading.shorthands import Shorthands
from rlinf_core.config.schema import (
    COMPONENT_LISTS,
    COMPONENTS,
    POLICY_COMPONENTS,
    POLICY_SECTIONS,
    RIVALS,
    SCALARS,
    SECTIONS,
)
from rlinf_core.errors import suggest

Tree = dict[str, Any]  # Any: YAML values
_POLICY = "'policies: {NAME: {model: {path: FOLDER}}}'"


@dataclass(frozen=True)
class Layer:
    """Settings from one place. `origin` says where: "recipes/a.yaml", "--algo", "override".

    `folder` is where relative file paths of these settings may also lie.
    """

    settings: Mapping[str, Any]  # Any: YAML values
    origin: str
    folder: Path | None = None


@dataclass
class Merged:
    """All layers as one tree; a list of components holds one tree each."""

    tree: Tree = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)  # dotted key -> origin, of the keys that were set
    folders: dict[str, Path] = field(default_factory=dict)  # origin -> folder
    problems: list[str] = field(default_factory=list)

    def origin(self, key: str) -> str:
        """Where the value at a dotted key, or below it, came from; "default" if no layer set it."""
        if key in self.origins:
            return self.origins[key]
        below = [origin for known, origin in self.origins.items() if known.startswith(f"{key}.")]
        return below[-1] if below else "default"

    def came(self, key: str) -> str:
        """` (from X)` for messages, or "" for a default."""
        origin = self.origin(key)
        return "" if origin == "default" else f" (from {origin})"


def merge(layers: Sequence[Layer], shorthands: Shorthands) -> Merged:
    """Merge from lowest to highest. What does not fit is told in `problems`."""
    merged = Merged()
    for layer in layers:
        if layer.folder is not None:
            merged.folders[layer.origin] = layer.folder
        for section, value in layer.settings.items():
            _Merger(merged, layer.origin, shorthands).section(str(section), value)
    return merged


@dataclass
class _Merger:
    merged: Merged
    origin: str
    shorthands: Shorthands

    def section(self, section: str, value: Any) -> None:
        tree = self.merged.tree
        if section == "placement" and isinstance(value, Mapping):
            if not isinstance(tree.get(section), dict):
                self._set(tree, section, section, {})
            self._placement(tree[section], value)
        elif section in SCALARS:
            self._set(tree, section, section, value)
        elif section in COMPONENTS:
            self._component(tree, section, section, value)
        elif section in COMPONENT_LISTS:
            self._component_list(section, value)
        elif section == "policies":
            self._policies(value)
        elif section in SECTIONS:
            self._plain(self.merged.tree, section, section, value)
        else:
            known = [*COMPONENTS, *COMPONENT_LISTS, "policies", *SECTIONS, *SCALARS]
            self.merged.problems.append(
                f"{section}: unknown section (from {self.origin}); there are: {', '.join(known)}."
                f"{suggest(section, known)}"
            )

    def _plain(self, tree: Tree, slot: str, key: str, value: Any) -> None:
        if value is None:
            self._drop(tree, slot, key)
        elif isinstance(value, Mapping):
            self._deep(tree.setdefault(slot, {}), key, value)
        else:
            self._problem(key, f"needs keys below it, such as '{slot}: {{KEY: VALUE}}', got {value!r}")

    def _policies(self, value: Any) -> None:
        tree = self.merged.tree
        if value is None:
            self._drop(tree, "policies", "policies")
        elif isinstance(value, Mapping):
            for name, settings in value.items():
                self._policy(tree.setdefault("policies", {}), str(name), settings)
        else:
            self._problem("policies", f"needs names with keys below them, such as {_POLICY}, got {value!r}")

    def _policy(self, policies: Tree, name: str, settings: Any) -> None:
        here = f"policies.{name}"
        if settings is None:
            self._drop(policies, name, here)
            return
        if not isinstance(settings, Mapping):
            self._problem(here, f"needs keys below it, such as {_POLICY}, got {settings!r}")
            return
        policy = policies.setdefault(name, {})
        self.merged.origins.setdefault(here, self.origin)
        for key, value in settings.items():
            if key in POLICY_COMPONENTS:
                self._component(policy, key, f"{here}.{key}", value)
            elif key in POLICY_SECTIONS:
                self._plain(policy, key, f"{here}.{key}", value)
            else:
                self._set(policy, str(key), f"{here}.{key}", value)

    def _placement(self, placed: Tree, value: Mapping[Any, Any]) -> None:
        """A component that this layer places leaves the entries of lower layers."""
        named = {name for key in value for name in component_names(key)}
        for key in list(placed):
            left = [name for name in component_names(key) if name not in named]
            if left != component_names(key):
                entry, origin = placed.pop(key), self.merged.origin(f"placement.{key}")
                self._forget(f"placement.{key}")
                if left:
                    placed[",".join(left)] = entry
                    self.merged.origins[f"placement.{','.join(left)}"] = origin
        for key, entry in value.items():
            self._set(placed, str(key), f"placement.{key}", entry)

    def _component(self, holder: Any, slot: Any, key: str, value: Any) -> None:
        """`holder[slot]` is the component's tree, in a mapping or in a list."""
        if value is None:
            self._drop(holder, slot, key)
            return
        options = self._options(key, value)
        if options is None:
            return
        current = holder[slot] if isinstance(holder, list) else holder.setdefault(slot, {})
        named = options.get("name")
        if (isinstance(value, str) and len(options) > 1) or named not in (None, current.get("name")):
            current.clear()
            self._forget(key)
        self._deep(current, key, options)

    def _component_list(self, section: str, value: Any) -> None:
        components: list[Tree] = self.merged.tree.setdefault(section, [])
        if isinstance(value, Mapping) and value and all(str(key).isdigit() for key in value):
            self._by_index(section, components, value)
        elif isinstance(value, Mapping) and _continues(components, value):
            self._single(section, components, value)
        else:
            self._forget(section)
            self.merged.origins[section] = self.origin
            items = [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
            components[:] = [{} for _ in items]
            for index, item in enumerate(items):
                self._component(components, index, f"{section}.{index}", item)

    def _single(self, section: str, components: list[Tree], value: Mapping[Any, Any]) -> None:
        """Options for the one component that is there."""
        if len(components) == 1:
            self._component(components, 0, f"{section}.0", value)
        else:
            example = f"{section}.0.{next(iter(value), 'KEY')}"
            self._problem(section, f"there are {len(components)}; say which one, such as {example}")

    def _by_index(self, section: str, components: list[Tree], value: Mapping[Any, Any]) -> None:
        for slot, options in value.items():
            index = int(slot)
            if index < len(components):
                self._component(components, index, f"{section}.{index}", options)
            else:
                self._problem(f"{section}.{index}", f"there are {len(components)}, counted from 0")

    def _options(self, key: str, value: Any) -> Tree | None:
        """A component's options, shorthands expanded."""
        section = key.rpartition(".")[2] if key.startswith("policies.") else key.partition(".")[0]
        if isinstance(value, str):
            return self.shorthands.expand(section, value)
        if not isinstance(value, Mapping):
            self._problem(key, f"needs a plugin's name or '{{name: NAME, KEY: VALUE}}', got {value!r}")
            return None
        options = {str(option): item for option, item in value.items()}
        if isinstance(options.get("name"), str):
            options = {**self.shorthands.expand(section, options["name"]), **_without(options, "name")}
        return options

    def _deep(self, tree: Tree, key: str, value: Mapping[Any, Any]) -> None:
        for name, item in value.items():
            here = f"{key}.{name}"
            if isinstance(item, Mapping) and item:
                if not isinstance(tree.get(str(name)), dict):
                    self._forget(here)
                    tree[str(name)] = {}
                self._deep(tree[str(name)], here, item)
            else:
                self._set(tree, str(name), here, item)
                if here in RIVALS and item != 0:
                    self._supersede(tree, here, RIVALS[here])

    def _supersede(self, tree: Tree, key: str, rival: str) -> None:
        """A value takes the place of one that a lower layer gave by another key."""
        slot = rival.rpartition(".")[2]
        if not tree.get(slot):
            return
        if self.merged.origin(rival) == self.origin:
            self._problem(key, f"says the same as {rival}={tree[slot]!r}; set one of them")
        else:
            self._drop(tree, slot, rival)

    def _set(self, tree: Tree, slot: str, key: str, value: Any) -> None:
        self._forget(key)
        tree[slot] = value
        self.merged.origins[key] = self.origin

    def _drop(self, holder: Any, slot: Any, key: str) -> None:
        self._forget(key)
        if isinstance(holder, list):
            holder[slot].clear()
        else:
            holder.pop(slot, None)

    def _forget(self, key: str) -> None:
        origins = self.merged.origins
        for known in [known for known in origins if known == key or known.startswith(f"{key}.")]:
            del origins[known]

    def _problem(self, key: str, text: str) -> None:
        self.merged.problems.append(f"{key}: {text} (from {self.origin})")


def _continues(components: list[Tree], value: Mapping[Any, Any]) -> bool:
    """Whether `value` sets options of a component that is there, rather than naming another."""
    names = [component.get("name") for component in components]
    return bool(names) and ("name" not in value or names == [value["name"]])


def _without(tree: Tree, *names: str) -> Tree:
    return {name: value for name, value in tree.items() if name not in names}
