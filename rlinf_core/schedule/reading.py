"""Reads the YAML of profiles and plans: every value that does not fit is told with its place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlinf_core.errors import ConfigError, suggest


class Section:
    """A mapping of a file. `where` (such as `plan.yaml: components.actor`) stands before every message.

    Values are any until asked for by type. Raises `ConfigError`.
    """

    def __init__(self, values: Any, where: str, known: Sequence[str] = ()) -> None:  # Any: from YAML
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: needs a mapping of keys to values, got {values!r}")
        self.values = values
        self.where = where
        for key in values:
            if known and key not in known:
                hint = suggest(str(key), known)
                raise ConfigError(f"{where}: unknown key {key!r}; allowed: {', '.join(known)}.{hint}")

    def has(self, key: str) -> bool:
        """Whether a key is given (and not null)."""
        return self.values.get(key) is not None

    def at(self, key: str) -> str:
        """The place of a key, for a message."""
        return f"{self.where}{'.' if ': ' in self.where else ': '}{key}"

    def number(self, key: str, default: float | None = None, least: float = 0.0) -> float:
        """A finite number of at least `least`; without a default it must be given."""
        return _number(self._given(key, default), self.at(key), least)

    def whole(self, key: str, default: int | None = None, least: int = 0) -> int:
        """A whole number of at least `least`."""
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{self.at(key)}: needs a whole number of {least} or more, got {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._given(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.at(key)}: needs a text, got {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._given(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.at(key)}: needs true or false, got {value!r}")
        return value

    def section(self, key: str, known: Sequence[str] = ()) -> Section:
        """A mapping below this one; empty where it is not given."""
        return Section(self._given(key, {}), self.at(key), known)

    def sections(self, key: str, known: Sequence[str] = ()) -> Iterator[Section]:
        """The mappings of a list; none where it is not given."""
        value = self._given(key, [])
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ConfigError(f"{self.at(key)}: needs a list, got {value!r}")
        for index, item in enumerate(value):
            yield Section(item, f"{self.at(key)}.{index}", known)

    def named(self, known: Sequence[str] = ()) -> Iterator[tuple[str, Section]]:
        """Every key of this mapping with the mapping below it."""
        for key in self.values:
            yield str(key), Section(self.values[key], self.at(str(key)), known)

    def numbers(self, least: float = 0.0) -> dict[str, float]:
        """Every key of this mapping with its number."""
        return {str(key): _number(value, self.at(str(key)), least) for key, value in self.values.items()}

    def _given(self, key: str, default: Any) -> Any:  # Any: from YAML
        value = self.values.get(key)
        if value is None and default is None:
            raise ConfigError(f"{self.at(key)}: must be given")
        return default if value is None else value


def _number(value: Any, where: str, least: float) -> float:  # Any: from YAML
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < least:
        raise ConfigError(f"{where}: needs a number of {least:g} or more, got {value!r}")
    return float(value)
