"""Turns YAML values into the dataclasses of the settings, telling every value that does not fit."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union

from rlinf_core.config.reading.layers import Merged
from rlinf_core.config.reading.ranges import check_range
from rlinf_core.errors import ConfigError, PluginError, suggest


class _UnfitError(Exception):
    """A value that a type does not take; the message says what the type takes."""

    def __init__(self, needs: str, hint: str = "") -> None:
        super().__init__(needs)
        self.hint = hint


def convert(cls: type, values: Mapping[str, Any], key: str, owner: str, merged: Merged) -> Any:
    """An instance of the dataclass, or None after adding to `merged.problems`.

    `key` is the dotted key of the section, `owner` what messages call it (a plugin or a section). Any: the
    class is the caller's.
    """
    known = {item.name: item for item in fields(cls) if item.init}
    before = len(merged.problems)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        here = f"{key}.{name}"
        if name in known:
            arguments |= convert_field(cls, name, value, here, owner, merged)
        else:
            merged.problems.append(_unknown_key(here, name, owner, list(known), merged))
    merged.problems += [
        f"{key}.{name}: must be set ({owner} has no default for it)"
        for name, item in known.items()
        if name not in values and _required(item)
    ]
    return None if len(merged.problems) > before else _construct(cls, arguments, key, owner, merged)


def convert_field(cls: type, name: str, value: Any, key: str, owner: str, merged: Merged) -> dict[str, Any]:
    """`{name: value}` with the value as the type of the dataclass's field; {} after adding to
    `merged.problems`."""
    try:
        made = _value(value, type_hints(cls)[name], key, owner, merged)
        check_range(cls, name, made)
    except ConfigError as err:
        merged.problems.append(f"{key}: {err}{merged.came(key)}")
        return {}
    except _UnfitError as unfit:
        merged.problems.append(f"{key}: {unfit}, got {value!r}{merged.came(key)}{unfit.hint}")
        return {}
    (field,) = (item for item in fields(cls) if item.name == name)
    return {name: _located(made, key, merged) if field.metadata.get("path") else made}


def type_hints(cls: type) -> dict[str, Any]:
    """The resolved types of a config dataclass. Raises `PluginError` for a type that cannot be found."""
    try:
        return typing.get_type_hints(cls)
    except NameError as err:
        raise PluginError(
            f"{cls.__module__}.{cls.__qualname__}: {err}; the types of a config dataclass must be importable "
            "when the settings are read, so import them outside of `if TYPE_CHECKING`"
        ) from err


def _required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _unknown_key(key: str, name: str, owner: str, known: list[str], merged: Merged) -> str:
    offered = f"{owner} has: {', '.join(known)}." if known else f"{owner} has no settings."
    return f"{key}: unknown key{merged.came(key)}; {offered}{suggest(name, known)}"


def _construct(cls: type, arguments: dict[str, Any], key: str, owner: str, merged: Merged) -> Any:
    try:
        return cls(**arguments)
    except (ConfigError, ValueError) as err:
        merged.problems.append(_own_check(str(err), list(arguments), key, owner, merged))
        return None


def _own_check(text: str, given: list[str], key: str, owner: str, merged: Merged) -> str:
    """A config class's own complaint, with its section in front and the origins behind.

    The origin is that of the first setting it mentions, else of all that were given.
    """
    mentioned = [name for name in re.findall(r"\w+", text) if name in given][:1]
    places = dict.fromkeys(merged.origin(f"{key}.{name}") for name in mentioned or given)
    came = f" (from {', '.join(places)})" if places else ""
    section = key.partition(".")[0]
    if re.match(rf"{section}\b", text):
        return f"{text}{came}"
    return f"{key if owner in key.split('.') else f'{key} ({owner})'}: {text}{came}"


def _located(value: Any, key: str, merged: Merged) -> Any:
    """A relative path as it is if it exists here, else beside the recipe if it exists there."""
    folder = merged.folders.get(merged.origin(key))
    if folder is None or not isinstance(value, (str, Path)) or not str(value):
        return value
    beside = folder / value
    return type(value)(beside) if not Path(value).exists() and beside.exists() else value


def _value(value: Any, wanted: Any, key: str, owner: str, merged: Merged) -> Any:
    """`value` as the type `wanted`. Raises `_UnfitError`."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return value
    if origin is Literal:
        return _literal(value, arguments)
    if origin in (Union, types.UnionType):
        return _union(value, arguments, key, owner, merged)
    if is_dataclass(wanted) and isinstance(wanted, type):
        return _nested(value, wanted, key, merged)
    container = origin or wanted
    if isinstance(container, type) and issubclass(container, Mapping):
        return _mapping(value, arguments, key, owner, merged)
    if isinstance(container, type) and issubclass(container, (tuple, list, AbstractSet)):
        return _sequence(value, container, arguments, key, owner, merged)
    return _scalar(value, wanted)


def _scalar(value: Any, wanted: Any) -> Any:
    """YAML writes 1e3 for a whole number, and 1 for a fraction: both are taken."""
    plain_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is int and plain_number and math.isfinite(value) and value == int(value):
        return int(value)
    if wanted is float and (plain_number or isinstance(value, str)):
        try:
            number = float(value)
        except ValueError:
            raise _UnfitError("needs a number") from None
        if not math.isnan(number):
            return number
    if wanted is str and isinstance(value, str):
        return value
    if wanted is Path and isinstance(value, (str, Path)):
        return Path(value)
    if wanted in (type(None), None) and value is None:
        return None
    raise _UnfitError(f"needs {_wording(wanted)}")


def _literal(value: Any, choices: tuple[Any, ...]) -> Any:
    if value is False and False not in choices and "off" in choices:  # how YAML reads the word
        return "off"
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return value
    near = suggest(value, [str(choice) for choice in choices]) if isinstance(value, str) else ""
    raise _UnfitError(f"needs one of {', '.join(str(choice) for choice in choices)}", near and f".{near}")


def _union(value: Any, arms: tuple[Any, ...], key: str, owner: str, merged: Merged) -> Any:
    exact = [arm for arm in arms if isinstance(arm, type) and type(value) is arm]
    needs: list[str] = []
    for arm in [*exact, *arms]:
        try:
            return _value(value, arm, key, owner, merged)
        except _UnfitError as unfit:
            needs.append(str(unfit).removeprefix("needs "))
    raise _UnfitError(f"needs {' or '.join(dict.fromkeys(needs))}")


def _nested(value: Any, wanted: type, key: str, merged: Merged) -> Any:
    if is_dataclass(value) and isinstance(value, wanted):
        return value
    if not isinstance(value, Mapping):
        raise _UnfitError("needs keys below it")
    return convert(wanted, value, key, key.rpartition(".")[2], merged)


def _mapping(value: Any, arguments: tuple[Any, ...], key: str, owner: str, merged: Merged) -> Any:
    if not isinstance(value, Mapping):
        raise _UnfitError("needs keys below it")
    item = arguments[1] if len(arguments) == 2 else Any
    return {str(name): _value(entry, item, f"{key}.{name}", owner, merged) for name, entry in value.items()}


def _sequence(
    value: Any, container: type, arguments: tuple[Any, ...], key: str, owner: str, merged: Merged
) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _UnfitError(f"needs a list, such as [{value}]")
    fixed = container is tuple and arguments and arguments[-1] is not Ellipsis
    if fixed and len(value) != len(arguments):
        raise _UnfitError(f"needs a list of {len(arguments)}")
    kinds = list(arguments) if fixed else [arguments[0] if arguments else Any] * len(value)
    items = [_value(item, kind, key, owner, merged) for item, kind in zip(value, kinds, strict=True)]
    if issubclass(container, (set, frozenset)):
        return container(items)
    return list(items) if container is list else tuple(items)


def _wording(wanted: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text (quote it)"}
    words |= {type(None): "null", Path: "a path"}
    return words.get(wanted, str(getattr(wanted, "__name__", wanted)))
