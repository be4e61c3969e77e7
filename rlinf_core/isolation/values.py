"""Settings as plain values, and back, so that another environment can make the same dataclasses of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rlinf_core.errors import ConfigError


def encode(value: Any, key: str) -> Any:  # Any: values of settings, and plain values
    """A value of settings as plain values that `decode` makes the same value of. Raises `ConfigError`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [encode(item, f"{key}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        parts = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        if not parts:  # a plugin without settings reads none
            return None
        named = {name: encode(part, f"{key}.{name}") for name, part in parts.items()}
        return {"dataclass": f"{cls.__module__}:{cls.__qualname__}", "fields": named}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"mapping": {name: encode(part, f"{key}.{name}") for name, part in value.items()}}
    raise ConfigError(
        f"{key}: a {type(value).__name__} cannot be told to another process; settings are numbers, texts, "
        "lists, mappings and dataclasses of them"
    )


def decode(value: Any) -> Any:  # Any: as for `encode`
    """What `encode` was given."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(decode(item) for item in value["tuple"])
    if "mapping" in value:
        return {name: decode(part) for name, part in value["mapping"].items()}
    return find(value["dataclass"])(**{name: decode(part) for name, part in value["fields"].items()})


def find(target: str) -> Any:  # Any: a class
    """The class that `module:Class` names."""
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
