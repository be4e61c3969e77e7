"""Environments of plugins are built from their locks, and noticed when they are not what they should be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlinf_core.errors import PluginError
from rlinf_core.isolation import build, child_environment, environment_of, environments_home, interpreter
from rlinf_core.plugins import Isolation, SimulatorSpec

PACKAGE = "lonely_sim"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin's package with an empty lock, and a home for environments."""
    folder = tmp_path / "code" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "simulator.py").write_text("from rlinf_core.api.simulator import Simulator\nMARK = 7\n")
    (folder / "lock.txt").write_text("# nothing\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("RLINF_ENVIRONMENTS", str(tmp_path / "home"))
    return folder


def spec(imports: tuple[str, ...] = ("json",), python: str = ">=3.11") -> SimulatorSpec:
    isolation = Isolation(
        lock=f"{PACKAGE}/lock.txt", imports=imports, variables={"GL": "soft", "KEPT": "no"}, python=python
    )
    return SimulatorSpec(
        name="lonely", summary="", target=f"{PACKAGE}.simulator:Simulator", isolation=isolation
    )


def fake(folder: Path) -> None:
    """An environment made of this interpreter, as `build` leaves one."""
    environment = environment_of(spec())
    assert environment is not None
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "rlinf-environment.json").write_text(json.dumps({"digest": environment.digest}))


def test_an_environment_is_used_when_it_is_whole_and_of_this_lock(package: Path, tmp_path: Path) -> None:
    assert interpreter(spec()) is None
    home = tmp_path / "home" / "lonely"
    fake(home)
    assert interpreter(spec()) == home / "bin" / "python"
    (package / "lock.txt").write_text("numpy==1.26.4\n")
    with pytest.raises(PluginError, match=r"is stale; build it anew by `rlinf plugins install lonely --isol"):
        interpreter(spec())
    (home / "rlinf-environment.json").unlink()
    with pytest.raises(PluginError, match="is unfinished"):
        interpreter(spec())


def test_its_processes_import_this_rlinf_and_the_plugin_and_nothing_else_from_here(
    package: Path, tmp_path: Path
) -> None:
    fake(tmp_path / "home" / "lonely")
    base = {"PYTHONPATH": "/elsewhere", "VIRTUAL_ENV": "/here", "KEPT": "yes", "PATH": os.environ["PATH"]}
    first, again = (child_environment(spec(), base) for _ in range(2))
    assert first == again
    assert (first["GL"], first["KEPT"]) == ("soft", "yes")
    assert "VIRTUAL_ENV" not in first
    assert sorted(os.listdir(first["PYTHONPATH"])) == [PACKAGE, "rlinf_core"]
    code = f"import {PACKAGE}.simulator as s, sys; print(s.MARK, {{'numpy', 'pluggy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=first, capture_output=True, text=True)
    assert done.stdout.split() == ["7", "set()"], done.stderr


def test_processes_that_start_at_once_share_one_folder_of_links(package: Path, tmp_path: Path) -> None:
    fake(tmp_path / "home" / "lonely")
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: child_environment(spec())["PYTHONPATH"], range(16)))
    assert [str(path) for path in (tmp_path / "home/lonely/links").iterdir()] == list(found)


def test_what_does_not_fit_is_said_before_anything_is_built(package: Path) -> None:
    with pytest.raises(PluginError, match=r"needs Python <3.0 for its environment; this is 3\."):
        build(spec(python="<3.0"))
    plain = SimulatorSpec(name="plain", summary="", target="a:B")
    with pytest.raises(PluginError, match="'plain' has no environment of its own"):
        build(plain)
    (package / "lock.txt").unlink()
    with pytest.raises(PluginError, match=r"its lock file .*lock.txt is missing"):
        environment_of(spec())


def test_the_home_of_environments_may_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLINF_ENVIRONMENTS", str(tmp_path))
    assert environments_home() == tmp_path
    monkeypatch.delenv("RLINF_ENVIRONMENTS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert environments_home() == Path("/data/rlinf/environments")


def test_an_environment_is_built_once_and_again_when_asked(package: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = build(spec(), say=said.append)
    assert made.state == "ready"
    assert "pip" in json.loads((made.folder / "rlinf-environment.json").read_text())["versions"]
    build(spec(), say=said.append)
    assert "is there, made from lock.txt as it is now" in said[-1]
    shutil.rmtree(tmp_path / "home")


@pytest.mark.slow
def test_what_cannot_be_built_is_told_with_the_end_of_the_log(package: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"no_such_module does not import there"):
        build(spec(("no_such_module",)), say=str)
    with pytest.raises(PluginError, match="is unfinished"):
        interpreter(spec())
    (package / "lock.txt").write_text("./nowhere.whl\n")
    with pytest.raises(PluginError, match=r"-m pip .*failed with exit code 1; the end of"):
        build(spec(), say=str)
    shutil.rmtree(tmp_path / "home")
