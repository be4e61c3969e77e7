"""Builds the environment of a plugin from its lock, and checks it."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rlinf_core.errors import PluginError
from rlinf_core.isolation.environments import MANIFEST, Environment, environment_of
from rlinf_core.isolation.launch import child_environment

if TYPE_CHECKING:
    from rlinf_core.plugins.specs import PluginSpec

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")  # looked for where this one does not fit
TAIL = 15  # lines of a log that an error shows


def build(spec: PluginSpec, *, force: bool = False, say: Callable[[str], object] = print) -> Environment:
    """Make the plugin's environment, unless it is there; returns it ready to use.

    Raises `PluginError`, with the end of pip's log, if it cannot be made or does not import what it should.
    """
    environment = environment_of(spec)
    if environment is None:
        raise PluginError(
            f"{spec.kind} plugin {spec.name!r} has no environment of its own; it runs where rlinf runs"
        )
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(environment):
        if environment.state == "ready" and not force:
            say(f"{environment.folder} is there, made from {environment.lock.name} as it is now")
            return environment
        if environment.folder.exists():
            shutil.rmtree(environment.folder)
        _create(environment, say)
        versions = _checked(spec, environment)
        manifest = {"plugin": spec.name, "digest": environment.digest, "versions": versions}
        (environment.folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return environment


@contextmanager
def _alone(environment: Environment) -> Iterator[None]:
    """Two builders of one environment wait for each other."""
    with open(environment.folder.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _create(environment: Environment, say: Callable[[str], object]) -> None:
    python = _fitting_python(environment)
    packages = [line for line in environment.lock.read_text().splitlines() if line and line[0] not in "#-"]
    say(f"building {environment.folder}: {len(packages)} packages of {environment.lock.name}")
    log = environment.folder.with_suffix(".log")
    with open(log, "w") as out:
        _run([python, "-m", "venv", str(environment.folder)], out, log, environment)
        install = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "install"]
        rest = [] if environment.isolation.resolve else ["--no-deps"]
        _run([*install, *rest, "-r", str(environment.lock)], out, log, environment)


def _run(command: list[str], out: IO[str], log: Path, environment: Environment) -> None:
    done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise PluginError(
            f"{environment.kind} plugin {environment.plugin!r}: {' '.join(command[1:4])} failed with exit "
            f"code {done.returncode}; the end of {log}:\n{_end(log.read_text())}"
        )


def _checked(spec: PluginSpec, environment: Environment) -> dict[str, str]:
    """Import what has to import, as a process of the plugin would; returns versions of what is installed."""
    lines = [f"import {name}" for name in ("rlinf_core.api.simulator", *environment.isolation.imports)]
    lines += [
        "import json, importlib.metadata as m",
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))",
    ]
    done = subprocess.run(
        [str(environment.python), "-c", "\n".join(lines)],
        env=child_environment(spec),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PluginError(
            f"{spec.kind} plugin {spec.name!r}: its environment in {environment.folder} was built, but "
            f"{', '.join(environment.isolation.imports)} does not import there:\n{_end(done.stderr)}"
        )
    versions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return versions


def _fitting_python(environment: Environment) -> str:
    """This Python, or one on the path that the lock was made for."""
    from packaging.specifiers import SpecifierSet

    wanted = SpecifierSet(environment.isolation.python)
    if wanted.contains(".".join(str(part) for part in sys.version_info[:3])):
        return sys.executable
    for name in PYTHONS:
        if shutil.which(name) and wanted.contains(f"{name.removeprefix('python')}.0"):
            return name
    raise PluginError(
        f"{environment.kind} plugin {environment.plugin!r} needs Python {environment.isolation.python} for "
        f"its environment; this is {sys.version.split()[0]}, and none of {', '.join(PYTHONS)} fits"
    )


def _end(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-TAIL:])
