"""Turns a bare value of a component section into options: a plugin's name, or a place such as a path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACE_OPTION = {"model": "path", "data": "path", "reward": "target"}  # the option that takes the place


@dataclass(frozen=True)
class Shorthands:
    """`plugins` maps section -> file suffix (or "default") -> plugin; `installed(section, name)` asks."""

    plugins: Mapping[str, Mapping[str, str]]
    installed: Callable[[str, str], bool]

    def expand(self, section: str, value: str) -> dict[str, Any]:  # Any: YAML values
        """`{"name": value}`, or for a place `{"name": PLUGIN, "path": value}`."""
        known = self.plugins.get(section)
        if known is None or not _is_place(value) or self.installed(section, value):
            return {"name": value}
        plugin = known.get(Path(value).suffix, known["default"])
        return {"name": plugin, PLACE_OPTION[section]: value}


def _is_place(value: str) -> bool:
    """Whether a value looks like a path, a hub id or `module:function` rather than a plugin's name."""
    return any(mark in value for mark in "/:.~") or Path(value).exists()
