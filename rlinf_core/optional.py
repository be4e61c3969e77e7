"""Packages that only some parts need, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from rlinf_core.errors import DataError


def require(module: str, package: str, purpose: str) -> Any:  # Any: a module without type information
    """The module; raises `DataError` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise DataError(f"{purpose} needs the package {package}: pip install {package}") from err
