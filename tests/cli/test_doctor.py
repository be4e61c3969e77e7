"""What `rlinf doctor` says of a good installation, and of one with faults."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.cli import doctor
from rlinf_core.isolation.environments import MANIFEST

Lines = dict[tuple[str, str], dict[str, str]]


@pytest.fixture
def told(rlinf: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Exit code and lines of the report, without environments. Any: how a command ended."""
    monkeypatch.setenv("RLINF_ENVIRONMENTS", str(tmp_path))

    def ask() -> tuple[int, Lines]:
        ended = rlinf("doctor", "--json")
        return ended.code, {(line["part"], line["name"]): line for line in json.loads(ended.out)}

    return ask


def test_a_good_installation_is_told_with_its_versions_and_what_could_be_built(
    told: Callable[[], Any],
) -> None:
    code, lines = told()
    assert code == 0
    assert {line["part"] for line in lines.values()} == {"machine", "version", "plugin", "environment"}
    assert lines["version", "omegaconf"]["detail"] == metadata.version("omegaconf")
    assert "local" in lines["plugin", "engines"]["detail"]
    absent = lines["environment", "simulators robosuite"]
    assert absent["state"] == "absent"
    assert absent["advice"] == "rlinf plugins install robosuite --isolated"


def test_half_built_environments_are_broken_and_built_anew_by_what_it_says(
    told: Callable[[], Any], tmp_path: Path
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
    told: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
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
    assert (line["state"], line["advice"]) == ("broken", "pip install pluggy")
    assert line["detail"].endswith("but rlinf-core asks for it")


def test_little_room_is_told_and_breaks_nothing(
    told: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage(2**33, 2**33 - 2**26, 2**26))
    code, lines = told()
    assert code == 0
    assert lines["machine", "shared memory"]["state"] == "low"
    assert lines["machine", "shared memory"]["detail"].startswith("0.1 GiB free")
    assert "--shm-size" in lines["machine", "shared memory"]["advice"]


def test_piped_every_line_has_five_fields(rlinf: Callable[..., Any]) -> None:
    ended = rlinf("doctor")
    rows = [line.split("\t") for line in ended.out.splitlines()]
    assert all(len(row) == 5 for row in rows)
    assert ["plugin", "backends"] in [row[:2] for row in rows]
