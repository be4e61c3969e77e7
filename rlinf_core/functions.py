"""Functions of the user, named by module or file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rlinf_core.errors import ConfigError, suggest


def load_function(target: str, setting: str) -> Callable[..., Any]:  # Any: it is the user's
    """The function of `package.module:function` or `./file.py:function`. Raises `ConfigError` that names the
    setting."""
    place, _, name = target.rpartition(":")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else load_module(place)
    except Exception as err:  # the user's module may raise anything while it is imported
        raise ConfigError(f"{setting} {target}: cannot import {place}: {type(err).__name__}: {err}") from err
    function = getattr(module, name, None)
    if not callable(function):
        offered = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        there = (", ".join(offered[:8]) + (", ..." if len(offered) > 8 else "")) or "none"
        raise ConfigError(
            f"{setting} {target}: {place} has no function {name!r}; there: {there}.{suggest(name, offered)}"
        )
    loaded: Callable[..., Any] = function
    return loaded


def load_module(name: str) -> ModuleType:
    """Import it; modules of the current directory are found too, after all installed ones."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module
