"""What can be said of the robosuite simulator without robosuite: settings, lock and how to install it."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rlinf_sim_robosuite import library
from rlinf_sim_robosuite.config import RobosuiteConfig
from rlinf_sim_robosuite.simulator import RobosuiteSimulator

from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.errors import ConfigError
from rlinf_core.isolation import environment_of
from rlinf_core.plugins import plugins


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": ""}, "simulator.task (robosuite): it is empty"),
        ({"reward": "none"}, "simulator.reward (robosuite): 'none': use shifted, dense, sparse"),
        ({"max_episode_steps": 0}, "simulator.max_episode_steps (robosuite): 0"),
        ({"control_hz": 501}, "simulator.control_hz (robosuite): 501"),
        ({"state": False}, "simulator.state (robosuite): false without cameras"),
        ({"image_size": 4}, "simulator.image_size (robosuite): 4"),
        ({"cameras": ("agentview", "agentview")}, "simulator.cameras (robosuite): agentview, agentview"),
        ({"kwargs": {"horizon": 9}}, "simulator.kwargs.horizon (robosuite): this plugin sets it; use "),
    ],
)
def test_settings_that_cannot_be_are_refused_by_their_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        RobosuiteConfig(**options)


def test_without_robosuite_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    library.library.cache_clear()
    monkeypatch.setitem(sys.modules, "robosuite", None)
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(ConfigError, match="rlinf plugins install robosuite --isolated"):
        RobosuiteSimulator(RobosuiteConfig(), 1, 0)


def test_the_lock_names_every_package_with_its_release_and_those_that_exclude_ours() -> None:
    environment = environment_of(plugins().get("simulators", "robosuite"))
    assert environment is not None
    lines = [line for line in Path(environment.lock).read_text().splitlines() if not line.startswith("#")]
    named = dict(line.split("==") for line in lines)
    assert named["robosuite"] == "1.5.2"
    assert tuple(map(int, named["mujoco"].split("."))) < (3, 10)
    assert named["numpy"].startswith("1.26")
    assert not {"rlinf-core", "torch", "opencv-python"} & set(named)


def test_the_commands_and_settings_of_the_page_are_those_there_are() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs/simulators-robosuite.md").read_text()
    (command,) = re.findall(r"^rlinf train (.*)$", page, re.MULTILINE)
    words = command.split()
    flags = dict(zip(words[:6:2], words[1:6:2], strict=True))
    named = {flag.removeprefix("--"): name for flag, name in flags.items()}
    config = compose(Options(**named, overrides=tuple(words[6:])))
    assert check(config, plugins()) == []
    known = {item.name for item in fields(RobosuiteConfig)}
    told = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) - {"state"}
    assert told <= known
    for name in known - {"state"}:
        assert f"`{name}" in page or f"`simulator.{name}" in page, name
