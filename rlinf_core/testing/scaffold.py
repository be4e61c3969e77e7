"""Writes a complete plugin package from the templates."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path
from string import Template

from rlinf_core.errors import ConfigError
from rlinf_core.plugins.kinds import OBSERVERS, SPECS, short

REQUIRES = {  # beyond rlinf-core
    "algorithms": ("torch>=2.6",),
    "backends": ("torch>=2.6",),
    "rollouts": ("torch>=2.6", "numpy>=1.26"),
    "models": ("torch>=2.6", "numpy>=1.26"),
    "simulators": ("numpy>=1.26",),
}
TEMPLATES = "rlinf_core.testing"


def scaffold(kind: str, name: str, folder: Path) -> Path:
    """Write `folder/rlinf-KIND-NAME` and return its path.

    The package passes the conformance checks of its kind as it is. Raises `ConfigError` for a name
    that Python cannot import, and for a folder that exists.
    """
    if kind == OBSERVERS or kind not in SPECS:
        raise ConfigError(f"there is no template for {kind!r}; kinds with one: {', '.join(SPECS)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"the name {name!r} cannot be a package; use small letters, digits and _ (my_{short(kind)})"
        )
    values = _values(kind, name)
    target = folder / values["distribution"]
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name or --path")
    for path, text in _files(kind, values).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(values))
    return target


def _values(kind: str, name: str) -> dict[str, str]:
    requires = "".join(f', "{requirement}"' for requirement in REQUIRES.get(kind, ()))
    return {
        "kind": kind,
        "singular": kind.removesuffix("s"),
        "file": kind.removesuffix("s"),
        "name": name,
        "Class": "".join(part.capitalize() for part in name.split("_")),
        "package": f"rlinf_{short(kind)}_{name}",
        "distribution": f"rlinf-{short(kind)}-{name.replace('_', '-')}",
        "requires": requires,
    }


def _files(kind: str, values: dict[str, str]) -> dict[str, str]:
    """Path in the new package -> its template."""
    package, file = values["package"], values["file"]
    return {
        "pyproject.toml": _template("common", "pyproject.toml"),
        "README.md": _template("common", "README.md"),
        f"tests/test_{package}.py": _template("common", "test.py"),
        f"{package}/__init__.py": _template("common", "__init__.py"),
        f"{package}/plugin.py": _template(kind, "plugin.py"),
        f"{package}/config.py": _template(kind, "config.py"),
        f"{package}/{file}.py": _template(kind, f"{file}.py"),
    }


def _template(folder: str, name: str) -> str:
    return resources.files(TEMPLATES).joinpath("templates", folder, f"{name}.tmpl").read_text()
