"""What draws without a window is chosen, and told, by what the machine has."""

from __future__ import annotations

import ctypes.util
import glob
import importlib
import sys

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.media import offscreen


@pytest.mark.parametrize(
    ("asked", "gpu", "installed", "chosen"),
    [
        ("", False, {"EGL", "OSMesa"}, "osmesa"),
        ("", True, {"EGL", "OSMesa"}, "egl"),
        ("", False, {"EGL"}, "egl"),
        ("EGL", False, {"EGL", "OSMesa"}, "egl"),
    ],
)
def test_software_draws_where_there_is_no_display_gpu(
    monkeypatch: pytest.MonkeyPatch, asked: str, gpu: bool, installed: set[str], chosen: str
) -> None:
    monkeypatch.setenv("MUJOCO_GL", asked)
    monkeypatch.setattr(glob, "glob", lambda pattern: ["card"] if gpu else [])
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name in installed else None)
    assert offscreen.graphics("arm") == chosen


def test_a_machine_that_cannot_draw_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ConfigError, match=r"simulator.images \(arm\).*apt-get install libosmesa6"):
        offscreen.graphics("arm")
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(ConfigError, match="MUJOCO_GL=glfw: the simulator arm draws with egl or osmesa"):
        offscreen.graphics("arm")


def test_a_variable_that_keeps_mujoco_from_loading_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("invalid value for environment variable MUJOCO_GL: window")

    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.setenv("MUJOCO_GL", "window")
    with pytest.raises(ConfigError, match="MUJOCO_GL=window: with it MuJoCo, which simulator arm needs"):
        offscreen.load_mujoco("arm", "pip install mujoco")


def test_an_absent_mujoco_comes_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(ConfigError, match=r"simulator arm needs MuJoCo, .* install it by pip install mujoco"):
        offscreen.load_mujoco("arm", "pip install mujoco")
