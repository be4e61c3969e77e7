"""The JSON Schema of a recipe: the core's sections and the settings of every installed plugin."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union

from rlinf_core.config.describe import describe
from rlinf_core.config.dump import plain
from rlinf_core.config.reading.convert import type_hints
from rlinf_core.config.resolve import SpecSource
from rlinf_core.config.schema import (
    COMPONENT_LISTS,
    COMPONENTS,
    POLICY_COMPONENTS,
    POLICY_SECTIONS,
    SCALARS,
    SECTIONS,
    PolicyConfig,
    RunConfig,
)
from rlinf_core.errors import PluginError

Json = dict[str, Any]  # Any: JSON values
_NAMES: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}


def json_schema(manager: SpecSource) -> Json:
    """A schema that editors check recipes with. A plugin that does not load is listed with the reason."""
    kinds = {**COMPONENTS, **COMPONENT_LISTS}
    definitions = {kind: _plugins(manager, kind) for kind in dict.fromkeys(kinds.values())}
    properties: Json = {section: _component(kind, definitions) for section, kind in COMPONENTS.items()}
    for section, kind in COMPONENT_LISTS.items():
        extra = {"weight": {"type": "number", "default": 1.0}} if section == "reward" else {}
        one = _component(kind, definitions, extra)
        properties[section] = {"anyOf": [*one["anyOf"], {"type": "array", "items": one}]}
    for section, cls in SECTIONS.items():
        properties[section] = settings_schema(cls)
    properties["policies"] = _policies(properties)
    whole = {item.name: item for item in describe(RunConfig)}
    hints = type_hints(RunConfig)
    for section in SCALARS:
        item = whole[section]
        entry = {"default": plain(item.default), "description": item.doc}
        properties[section] = {**_type(hints[section]), "x-type": item.type, **entry}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rlinf recipe",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "$defs": definitions,
    }


def _policies(properties: Mapping[str, Json]) -> Json:
    """By name, with sections as the run has them."""
    (about,) = (item.doc for item in describe(RunConfig) if item.name == "policies")
    own = {item.name: item for item in describe(PolicyConfig)}
    switch = {"type": "boolean", "default": own["warm_start"].default, "description": own["warm_start"].doc}
    sections = {name: properties[name] for name in (*POLICY_COMPONENTS, *POLICY_SECTIONS)}
    policy: Json = {
        "type": "object",
        "additionalProperties": False,
        "properties": {**sections, "warm_start": switch},
    }
    told = {
        "default": {},
        "description": about,
        "x-type": "by name: {model, algo, optimizer, lora, warm_start}",
    }
    return {"type": "object", "additionalProperties": policy, **told}


def settings_schema(cls: type) -> Json:
    """The schema of one config dataclass, described by its docstring and its fields' comments."""
    hints = type_hints(cls)
    properties: Json = {}
    for item in describe(cls):
        entry = {**_type(hints[item.name]), "x-type": item.type, "description": item.doc}
        properties[item.name] = entry if item.required else {**entry, "default": plain(item.default)}
    return {
        "type": "object",
        "description": (cls.__doc__ or "").strip().split("\n")[0],
        "additionalProperties": False,
        "properties": properties,
        "required": [item.name for item in describe(cls) if item.required],
    }


def _plugins(manager: SpecSource, kind: str) -> Json:
    found: Json = {}
    for name in manager.names(kind):
        try:
            spec = manager.get(kind, name)
            found[name] = {**settings_schema(spec.config), "description": spec.summary}
        except PluginError as err:
            found[name] = {"description": f"not usable: {err}", "properties": {}}
    return found


def _component(kind: str, definitions: Json, extra: Json | None = None) -> Json:
    """A plugin's name, or a mapping with its name and settings."""
    choices: list[Json] = [{"type": "string"}]
    for name, settings in definitions[kind].items():
        properties = {"name": {"const": name}, **(extra or {}), **settings["properties"]}
        choices.append(
            {
                "type": "object",
                "description": settings["description"],
                "properties": properties,
                "required": ["name"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": choices}


def _type(wanted: Any) -> Json:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(arm) for arm in arguments]}
    if wanted is type(None):
        return {"type": "null"}
    if is_dataclass(wanted) and isinstance(wanted, type):
        return settings_schema(wanted)
    container = origin or wanted
    if isinstance(container, type) and issubclass(container, Mapping):
        return {"type": "object"}
    if isinstance(container, type) and issubclass(container, (tuple, list, AbstractSet)):
        items = [argument for argument in arguments if argument is not Ellipsis]
        return {"type": "array", "items": _type(items[0])} if items else {"type": "array"}
    return {"type": _NAMES[wanted]} if wanted in _NAMES else {}
