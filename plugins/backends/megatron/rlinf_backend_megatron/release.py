"""Which Megatron-Core is installed, and whether it is one that this plugin works with."""

from __future__ import annotations

import importlib.util
import runpy
from importlib import metadata
from pathlib import Path

from rlinf_core.errors import ConfigError, PluginError

PACKAGE = "megatron-core"
SUPPORTED = ((0, 16), (0, 19))  # first and last minor release
INSTALL = "pip install 'megatron-core>=0.16,<0.20' psutil"


def check_release() -> str:
    """The installed version. Raises `PluginError` if there is none or it is out of range."""
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError as err:
        raise PluginError(f"backend megatron needs {PACKAGE}, which is not installed; {INSTALL}") from err
    first, last = ("{}.{}".format(*bound) for bound in SUPPORTED)
    if not SUPPORTED[0] <= _minor(version) <= SUPPORTED[1]:
        raise PluginError(
            f"backend megatron works with {PACKAGE} {first} to {last}; {version} is installed; {INSTALL}"
        )
    return version


def has_transformer_engine() -> bool:
    """Whether TransformerEngine is installed."""
    return importlib.util.find_spec("transformer_engine") is not None


def preload(path: str) -> None:
    """Run the file that `backend.preload` names. Raises `ConfigError` if there is none."""
    if not path:
        return
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"backend.preload (megatron): {path} is no file; give a Python file")
    runpy.run_path(str(file), run_name="rlinf_megatron_preload")


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int("".join(letter for letter in minor if letter.isdigit()) or 0)
