"""What can be said of the ManiSkill simulator without ManiSkill: its settings, actions and lock."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rlinf_sim_maniskill.config import ManiSkillConfig
from rlinf_sim_maniskill.layout import ActionLayout
from rlinf_sim_maniskill.simulator import ManiSkillSimulator

from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.errors import ConfigError
from rlinf_core.isolation import environment_of
from rlinf_core.plugins import plugins

PAGE = Path(__file__).resolve().parents[4] / "docs/simulators-maniskill.md"


def box(low: list[float], high: list[float]) -> Any:
    """Stands for a box of Gymnasium."""
    return SimpleNamespace(low=np.float32(low), high=np.float32(high), shape=(len(low),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": ""}, r"simulator.id \(maniskill\): it is empty"),
        ({"max_episode_steps": -1}, r"simulator.max_episode_steps \(maniskill\): -1"),
        ({"image_size": 4}, r"simulator.image_size \(maniskill\): 4"),
        (
            {"reward": "kind"},
            r"simulator.reward \(maniskill\): 'kind': use one of shifted, normalized, dense, sparse",
        ),
        ({"state": "robot"}, r"simulator.state \(maniskill\): robot without simulator.images"),
        ({"device": "tpu"}, r"simulator.device \(maniskill\): 'tpu': use one of auto, cpu, cuda"),
        ({"objects": "some"}, r"simulator.objects \(maniskill\): 'some': use one of train, test, all"),
        (
            {"kwargs": {"obs_mode": "rgb"}},
            r"simulator.kwargs.obs_mode \(maniskill\): use simulator.state and",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ManiSkillConfig(**{"id": "PushCube-v1", **options})


def test_without_maniskill_the_lines_that_install_it_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mani_skill", None)
    with pytest.raises(ConfigError, match="rlinf plugins install maniskill --isolated"):
        ManiSkillSimulator(ManiSkillConfig("PushCube-v1"), 1, 0)


def test_the_lock_has_the_releases_that_the_tests_ran_with() -> None:
    environment = environment_of(plugins().get("simulators", "maniskill"))
    assert environment is not None
    lines = set(environment.lock.read_text().splitlines())
    assert {"mani_skill==3.0.1", "sapien==3.0.3", "torch==2.13.0", "gymnasium==1.4.0"} <= lines


def test_equal_bounds_are_shown_as_they_are_and_kept() -> None:
    layout = ActionLayout(box([-2, -2], [2, 2]), "task", raw=False)
    assert (layout.space.low, layout.space.high, layout.space.shape) == (-2.0, 2.0, (2,))
    np.testing.assert_array_equal(layout.to_environment(np.array([[3.0, -1.0]])), [[2, -1]])


def test_unequal_bounds_are_scaled_from_minus_one_to_one_unless_actions_are_raw() -> None:
    space = box([0.0, -1.0], [0.5, 3.0])
    scaled, raw = ActionLayout(space, "task", raw=False), ActionLayout(space, "task", raw=True)
    assert (scaled.space.low, scaled.space.high) == (-1.0, 1.0)
    np.testing.assert_allclose(scaled.to_environment(np.array([[0.0, 0.5], [-1, 2]])), [[0.25, 2], [0, 3]])
    assert (raw.space.low, raw.space.high) == (-np.inf, np.inf)
    np.testing.assert_allclose(raw.to_environment(np.array([[0.3, 2.5], [-1, 9]])), [[0.3, 2.5], [0, 3]])


def test_actions_of_several_robots_are_one_box_and_taken_apart() -> None:
    spaces = SimpleNamespace(spaces={"left": box([-1, -1], [1, 1]), "right": box([-1], [1])})
    layout = ActionLayout(spaces, "task", raw=False)
    assert layout.space.shape == (3,)
    told = layout.to_environment(np.array([[0.1, 0.2, 0.3]]))
    np.testing.assert_allclose(told["left"], [[0.1, 0.2]])
    np.testing.assert_allclose(told["right"], [[0.3]])
    with pytest.raises(ConfigError, match=r"simulator.id \(maniskill\): task takes .*; actions are boxes"):
        ActionLayout(SimpleNamespace(n=4, shape=()), "task", raw=False)


def test_the_runs_of_the_page_pass_the_checks() -> None:
    commands = re.findall(r"^rlinf train (.*)$", PAGE.read_text().replace("\\\n", " "), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command)
        named = dict(zip(words[:6:2], words[1:6:2], strict=True))
        options = Options(
            **{name.removeprefix("--"): value for name, value in named.items()}, overrides=tuple(words[6:])
        )
        config = compose(options)
        assert check(config, plugins()) == []
        assert config.simulator.config.id in ("PushCube-v1", "PutOnPlateInScene25Main-v3")
