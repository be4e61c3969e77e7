"""What a process in a plugin's own environment starts with."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import rlinf_core
from rlinf_core.isolation.environments import environment_of, package_folder

if TYPE_CHECKING:
    from rlinf_core.plugins.specs import PluginSpec

FOREIGN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONSTARTUP")  # they are about this environment


def child_environment(spec: PluginSpec, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a process in the plugin's own environment, by default on top of those of this one.

    Its import path has this very `rlinf_core` and the plugin's package, by links, so that both sides always
    run the same code and nothing of rlinf is installed twice.
    """
    variables = {
        key: value for key, value in (os.environ if base is None else base).items() if key not in FOREIGN
    }
    environment = environment_of(spec)
    if environment is not None:
        for name, value in environment.isolation.variables.items():
            variables.setdefault(name, value)
        variables["PYTHONPATH"] = str(_links(environment.folder, spec))
        variables["PYTHONNOUSERSITE"] = "1"
    return variables


def _links(folder: Path, spec: PluginSpec) -> Path:
    """A folder of links to the packages; one for each place that they may lie in."""
    package = spec.target.partition(":")[0].partition(".")[0]
    places = {"rlinf_core": Path(rlinf_core.__file__).parent, package: package_folder(package, spec)}
    named = hashlib.sha256(repr(sorted(places.items())).encode()).hexdigest()[:12]
    links = folder / "links" / named
    if not links.exists():
        links.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=links.parent))
        for name, place in places.items():
            (draft / name).symlink_to(place)
        try:
            draft.rename(links)
        except OSError:
            shutil.rmtree(draft)
            if not links.exists():  # else another process was quicker
                raise
    return links
