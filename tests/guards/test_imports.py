"""Who may import what, as far as import-linter does not say it."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path for path in ROOT.glob("plugins/*/*/rlinf_*") if path.is_dir())
IDS = [path.name for path in PACKAGES]
LIGHT_CORE = ("api", "cli", "config", "plugins", "builtin.plugin_*", "cluster", "errors", "types")
HEAVY = ("torch", "numpy", "transformers", "pyarrow", "pandas")


def imports_of(path: Path) -> Iterator[str]:
    """Every imported module, and for `from m import n` also `m.n`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_private(module: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in module.split("."))


def _loaded_after(modules: list[str], watched: list[str]) -> list[str]:
    """Which of `watched` a fresh interpreter has loaded once it imported `modules`."""
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {watched!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def _foreign_modules(modules: list[str], package: str) -> set[str]:
    """Top-level packages loaded by `modules` beyond those of the core alone and the standard library."""
    code = (
        "import importlib, sys\nimport rlinf_core.api, rlinf_core.config, rlinf_core.plugins\n"
        "from rlinf_core.plugins import kinds, manager\n"
        "before = set(sys.modules)\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split()) - set(sys.stdlib_module_names) - {"rlinf_core", package}


@pytest.mark.parametrize("package", PACKAGES, ids=IDS)
def test_a_plugin_imports_no_other_plugin_and_nothing_private_of_the_core(package):
    others = {path.name for path in PACKAGES} - {package.name}
    for path in package.rglob("*.py"):
        imported = set(imports_of(path))
        assert {name for name in imported if name.partition(".")[0] in others} == set(), path
        private = {name for name in imported if name.startswith("rlinf_core.") and _is_private(name)}
        assert private == set(), path


@pytest.mark.parametrize("package", PACKAGES, ids=IDS)
def test_registering_a_plugin_imports_the_standard_library_and_the_core_only(package):
    modules = [f"{package.name}.{file.stem}" for file in package.glob("*.py")]
    light = [name for name in modules if name.endswith((".plugin", ".config"))]
    assert f"{package.name}.plugin" in light
    assert _foreign_modules(light, package.name) == set()


def test_what_commands_and_plugin_modules_import_of_the_core_is_light():
    modules = []
    for pattern in LIGHT_CORE:
        base = ROOT / "rlinf_core" / pattern.replace(".", "/")
        for file in (*base.rglob("*.py"), *base.parent.glob(f"{base.name}.py")):
            modules.append(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    assert {"rlinf_core.cli.app", "rlinf_core.errors", "rlinf_core.builtin.plugin_rewards"} <= set(modules)
    assert _loaded_after(sorted(modules), list(HEAVY)) == []


def test_import_linter_knows_every_package_of_this_repository():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    roots = set(contracts["importlinter"]["root_packages"].split())
    assert roots == {"rlinf_core", *IDS}
    assert set(contracts["importlinter:contract:core"]["forbidden_modules"].split()) == set(IDS)
    assert set(contracts["importlinter:contract:plugins"]["modules"].split()) == set(IDS)


def test_the_extras_name_plugins_of_this_repository_by_their_folders():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [line for extra in extras.values() for line in extra if line.startswith("rlinf-")]
    bundled = set()
    for line in named:
        name, _, place = line.partition(" @ ")
        if not place:
            continue
        manifest = ROOT / place.removeprefix("{root:uri}/") / "pyproject.toml"
        assert tomllib.loads(manifest.read_text())["project"]["name"] == name
        bundled.add(manifest.parent)
    assert bundled == {path.parent for path in PACKAGES}, "a plugin is in no bundle"
    assert set(extras["all"][0].partition("[")[2].rstrip("]").split(",")) == set(extras) - {"all"}
