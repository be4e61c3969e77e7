"""Writes a run's settings as plain values that resolve back to the same settings, and compares two."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rlinf_core.config.schema import (
    COMPONENTS,
    INHERITS,
    SCALARS,
    SECTIONS,
    Component,
    PolicyConfig,
    RunConfig,
    unused_keys,
    used,
)

_REFERENCE = re.compile(r"(\\*)\$\{")  # "${" would be read as a reference, backslashes before it as escapes


def dump(config: RunConfig) -> dict[str, Any]:  # Any: JSON values
    """Every setting as JSON-able values, in the form of a recipe.

    Keys that the task does not use are left out, and those that another section gives. A literal `${` is
    escaped, as in a recipe.
    """
    unused = unused_keys(config)
    tree: dict[str, Any] = {}
    for section in COMPONENTS:
        component = getattr(config, section)
        if component is not None:
            tree[section] = _component(component)
    if used("reward", unused):
        tree["reward"] = [
            {**_component(reward.component), "weight": reward.weight} for reward in config.rewards
        ]
    tree["trackers"] = [_component(component) for component in config.trackers]
    if used("tools", unused) and config.tools:
        tree["tools"] = [_component(component) for component in config.tools]
    for section in SECTIONS:
        if used(section, unused):
            settings = plain(getattr(config, section))
            tree[section] = {
                name: value for name, value in settings.items() if used(f"{section}.{name}", unused)
            }
    for section, source in INHERITS.items():
        given = tree[source]
        own = {name: value for name, value in tree.pop(section).items() if value != given[name]}
        tree |= {section: own} if own else {}
    if config.policies:
        tree["policies"] = {name: _policy(policy) for name, policy in config.policies.items()}
    return tree | {key: plain(getattr(config, key)) for key in SCALARS}


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old value, new value) where two dumped configs differ; None where one has no value."""
    before, after = dict(flatten(old)), dict(flatten(new))
    keys = [*before, *(key for key in after if key not in before)]
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`(dotted key, value)` of every leaf; items of a list of components are numbered."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{key}.")
        else:
            yield key, value


def _policy(policy: PolicyConfig) -> dict[str, Any]:
    parts = {item.name: getattr(policy, item.name) for item in fields(policy)}
    return {
        name: _component(part) if isinstance(part, Component) else plain(part) for name, part in parts.items()
    }


def _component(component: Component) -> dict[str, Any]:
    return {"name": component.name, **plain(component.config)}


def plain(value: Any) -> Any:
    """A setting as JSON-able values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value) if item.init}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return _REFERENCE.sub(r"\1\1\\${", value) if isinstance(value, str) else value
