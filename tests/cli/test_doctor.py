"""What `rlinf doctor` says of a good installation, and of one with faults."""

from __future__ import annotations

import json
import re
import resource
from collections import namedtuple
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.checkup import machine
from rlinf_core.checkup.drawing import drawing
from rlinf_core.checkup.finding import Finding
from rlinf_core.checkup.health import loading
from rlinf_core.checkup.packages import versions
from rlinf_core.isolation.environments import MANIFEST
from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import SPECS

Lines = dict[tuple[str, str], dict[str, str]]
PLUGIN = """
import os, time
from dataclasses import dataclass
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import RewardSpec

@hookimpl
def rlinf_register_rewards():
    names = ("a_good_one", "b_missing", "c_raises", "d_ends", "e_hangs")
    return [RewardSpec(name=name, summary="", target=f"of_the_test.{name}:Reward") for name in names]
"""
MODULES = {
    "a_good_one": "class Reward: pass",
    "b_missing": "import no_such_package.part",
    "c_raises": "raise RuntimeError('no licence')",
    "d_ends": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "e_hangs": "import time; time.sleep(60)",
}


@pytest.fixture
def told(rlinf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Exit code and lines of the report, without environments. Any: how a command ended."""
    monkeypatch.setenv("RLINF_ENVIRONMENTS", str(tmp_path))

    def ask(*words: str) -> tuple[int, Lines]:
        ended = rlinf("doctor", "--json", *(words or ["--quick"]))
        return ended.code, {(line["part"], line["name"]): line for line in json.loads(ended.out)}

    return ask


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution with plugins that fail in several ways; its folder of metadata."""
    package, info = tmp_path / "of_the_test", tmp_path / "rlinf_reward_test-0.1.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(PLUGIN)
    for name, code in MODULES.items():
        (package / f"{name}.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlinf-reward-test\nVersion: 0.1\n")
    offers = "\n".join(f"{name} = of_the_test.plugin" for name in MODULES)
    (info / "entry_points.txt").write_text(f"[rlinf.rewards]\n{offers}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    plugins.cache_clear()
    yield info
    plugins.cache_clear()


def test_a_good_installation_is_told_with_its_versions_and_what_could_be_built(
    told: Callable[..., Any],
) -> None:
    code, lines = told()
    assert code == 0
    parts = {"machine", "limit", "version", "plugin", "environment"}
    assert {line["part"] for line in lines.values()} == parts
    assert lines["version", "omegaconf"]["detail"] == metadata.version("omegaconf")
    assert "local" in lines["plugin", "engines"]["detail"]
    absent = lines["environment", "simulators robosuite"]
    assert absent["state"] == "absent"
    assert absent["advice"] == "rlinf plugins install robosuite --isolated"


def test_without_quick_plugins_load_pictures_are_drawn_and_the_disk_is_measured(
    told: Callable[..., Any], tmp_path: Path
) -> None:
    code, lines = told("--output", str(tmp_path / "runs" / "later"))
    assert code == 0
    count = sum(len(plugins().info(kind)) for kind in SPECS)
    assert lines["plugin", "loaded"]["detail"] == f"{count} of {count}"
    assert lines["machine", "disk speed"]["detail"].endswith(f"in {tmp_path}")
    assert list(tmp_path.iterdir()) == []
    ways = {way: lines["drawing", way] for way in ("egl", "osmesa", "vulkan")}
    for line in ways.values():
        assert line["state"] in ("ok", "absent")
        assert bool(line["advice"]) == (line["state"] == "absent")
    drew = [way for way, line in ways.items() if "drew a picture of 64 x 64 in" in line["detail"]]
    assert (lines["drawing", "pictures"]["detail"] in drew) == bool(drew)


def test_plugins_that_do_not_load_are_told_with_the_reason_and_harm_no_other(strange: Path) -> None:
    found = {finding.name: finding for finding in loading(["rewards"], limit_s=8.0)}
    count = len(plugins().info("rewards"))
    assert found.pop("loaded").detail == f"{count - 4} of {count}"
    said = {name.removeprefix("rewards "): (each.state, each.detail) for name, each in found.items()}
    assert said == {
        "b_missing": ("broken", "does not load: No module named 'no_such_package'"),
        "c_raises": ("broken", "does not load: RuntimeError: no licence (c_raises.py:1 in <module>)"),
        "d_ends": ("broken", "does not load: ended the process by SIGKILL"),
        "e_hangs": ("broken", "does not load: had not loaded after 8 s"),
    }
    assert found["rewards b_missing"].advice == "pip install no_such_package, or remove it"
    assert "rlinf-reward-test" in found["rewards c_raises"].advice


def test_packages_that_some_settings_need_are_absent_and_those_of_other_versions_broken(
    strange: Path,
) -> None:
    with (strange / "METADATA").open("a") as file:
        file.write("Requires-Dist: pluggy<1\nRequires-Dist: not-here; python_version < '3'\n")
        file.write("Provides-Extra: more\nProvides-Extra: whole\n")
        file.write(
            "Requires-Dist: no-such-package>=2; extra == 'more'\nRequires-Dist: rich>900; extra == 'more'\n"
        )
        file.write("Requires-Dist: rich; extra == 'whole'\n")
    found = {finding.name: finding for finding in versions()}
    installed = metadata.version("pluggy")
    detail = f"{installed}, but rlinf-reward-test asks for <1"
    assert found["pluggy"] == Finding("version", "pluggy", "broken", detail, "pip install 'pluggy<1'")
    extra = found["rlinf-reward-test[more]"]
    rich = metadata.version("rich")
    assert (extra.state, extra.detail) == ("absent", f"no-such-package not installed, rich {rich}, not >900")
    assert extra.advice == "pip install 'no-such-package>=2' 'rich>900'"
    assert "rlinf-reward-test[whole]" not in found
    assert "not-here" not in found


def test_half_built_environments_are_broken_and_built_anew_by_what_it_says(
    told: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "libero").mkdir()
    (tmp_path / "robosuite").mkdir()
    (tmp_path / "robosuite" / MANIFEST).write_text('{"digest": "of another lock"}')
    code, lines = told()
    assert code == 1
    for name, state in (("libero", "unfinished"), ("robosuite", "stale")):
        line = lines["environment", f"simulators {name}"]
        assert (line["state"], line["detail"]) == ("broken", f"{state}: {tmp_path / name}")
        assert line["advice"] == f"rlinf plugins install {name} --isolated --force"


def test_a_package_that_is_missing_is_named_with_who_asks_for_it(
    told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = metadata.version

    def version(name: str) -> str:
        if name == "pluggy":
            raise metadata.PackageNotFoundError(name)
        return there(name)

    monkeypatch.setattr(metadata, "version", version)
    code, lines = told()
    assert code == 1
    line = lines["version", "pluggy"]
    assert (line["state"], line["advice"]) == ("broken", "pip install 'pluggy>=1.5'")
    assert line["detail"].endswith("but rlinf-core asks for it")


def test_little_room_is_told_and_breaks_nothing(
    told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: usage(2**33, 2**33 - 2**26, 2**26))
    code, lines = told()
    assert code == 0
    assert lines["machine", "shared memory"]["state"] == "low"
    assert lines["machine", "shared memory"]["detail"].startswith("0.1 GiB free of 8.0 in")
    assert "--shm-size" in lines["machine", "shared memory"]["advice"]


def test_limits_of_processes_are_told_with_what_raises_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        resource.RLIMIT_NOFILE: (256, 2**20),
        resource.RLIMIT_NPROC: (100, 200),
        resource.RLIMIT_AS: (2**31, resource.RLIM_INFINITY),
    }
    monkeypatch.setattr(machine.resource, "getrlimit", given.__getitem__)
    files, processes, space = machine.limits()
    assert (files.state, files.detail, files.advice) == ("low", "256", "ulimit -n 65536")
    assert processes.detail == "100, at most 200"
    assert processes.advice == "ask whoever runs this machine for more (ulimit -u 65536)"
    assert (space.state, space.detail) == ("low", "2.0 GiB")


def test_a_folder_that_takes_no_files_is_broken() -> None:
    found = machine.disk_speed(Path("/proc"))
    assert (found.state, found.detail) == ("broken", "cannot be written: No such file or directory: /proc")


def test_a_driver_without_a_torch_for_it_is_broken(
    told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = machine.inventory()
    monkeypatch.setattr(
        machine, "inventory", lambda: type(nothing)(nothing.cores, nothing.memory_bytes, tuple)
    )
    monkeypatch.setattr(machine, "has_cuda_driver", lambda: True)
    code, lines = told()
    assert code == 1
    assert re.match(
        "there is a driver, but torch sees no GPU; torch .* is built", lines["machine", "gpu"]["detail"]
    )


def test_a_way_of_drawing_that_does_not_come_back_is_left_and_one_that_is_asked_for_has_to_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    found = {finding.name: finding for finding in drawing(limit_s=0.01)}
    assert {found[way].state for way in ("egl", "osmesa", "vulkan")} == {"absent"}
    assert (found["pictures"].state, found["pictures"].detail) == (
        "broken",
        "MUJOCO_GL=glfw asks for what does not draw",
    )


def test_piped_every_line_has_five_fields(rlinf: Callable[..., Any]) -> None:
    ended = rlinf("doctor", "--quick")
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert all(len(row) == 5 for row in rows)
    assert ["plugin", "backends"] in [row[:2] for row in rows]
