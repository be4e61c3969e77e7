"""Where environments of plugins lie, and in what state they are."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rlinf_core.errors import PluginError

if TYPE_CHECKING:
    from rlinf_core.plugins.specs import Isolation, PluginSpec

MANIFEST = "rlinf-environment.json"  # written when an environment is whole
State = Literal["absent", "unfinished", "stale", "ready"]


@dataclass(frozen=True)
class Environment:
    """A plugin's own environment: there, half built, built from another lock, or not there."""

    plugin: str
    kind: str
    isolation: Isolation
    folder: Path
    lock: Path

    @property
    def python(self) -> Path:
        """The interpreter, whether it is there or not."""
        return self.folder / "bin" / "python"

    @property
    def digest(self) -> str:
        """Of everything that the environment is made from."""
        made_from = f"{self.isolation.resolve} {self.lock.read_text()}"
        return hashlib.sha256(made_from.encode()).hexdigest()

    @property
    def state(self) -> State:
        """As found on the disk."""
        manifest = self.folder / MANIFEST
        if not manifest.exists():
            return "unfinished" if self.folder.exists() else "absent"
        fits = json.loads(manifest.read_text()).get("digest") == self.digest and self.python.exists()
        return "ready" if fits else "stale"


def environments_home() -> Path:
    """`$RLINF_ENVIRONMENTS`, or `rlinf/environments` where the user's data lies."""
    chosen = os.environ.get("RLINF_ENVIRONMENTS")
    if chosen:
        return Path(chosen).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "rlinf" / "environments"


def environment_of(spec: PluginSpec) -> Environment | None:
    """The environment that a plugin can have; None for those that need none."""
    if spec.isolation is None:
        return None
    package, _, name = spec.isolation.lock.partition("/")
    lock = package_folder(package, spec) / name
    if not lock.exists():
        raise PluginError(f"{spec.kind} plugin {spec.name!r}: its lock file {lock} is missing; reinstall it")
    return Environment(spec.name, spec.kind, spec.isolation, environments_home() / spec.name, lock)


def interpreter(spec: PluginSpec) -> Path | None:
    """The Python of a plugin's own environment, or None if there is none.

    Raises `PluginError` for one that is half built or made from an older lock.
    """
    environment = environment_of(spec)
    if environment is None or environment.state == "absent":
        return None
    if environment.state != "ready":
        raise PluginError(
            f"{spec.kind} plugin {spec.name!r}: its environment in {environment.folder} is "
            f"{environment.state}; build it anew by `{install_line(spec)}`"
        )
    return environment.python


def install_line(spec: PluginSpec) -> str:
    """The command that builds a plugin's own environment."""
    return f"rlinf plugins install {spec.name} --isolated"


def package_folder(package: str, spec: PluginSpec) -> Path:
    """Where a package of the plugin lies. Raises `PluginError` for one that is not a folder of files."""
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or []) if found else []
    if not places or not Path(places[0]).is_dir():
        raise PluginError(f"{spec.kind} plugin {spec.name!r}: its package {package} is not a folder of files")
    return Path(places[0])
