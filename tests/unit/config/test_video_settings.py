"""Videos that could not be made are refused before anything starts."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from rlinf_core.api.capabilities import SimulatorCapabilities
from rlinf_core.config.check import check

EMBODIED = {"simulator": "line", "model": "mlp"}


def test_a_simulator_that_draws_nothing_cannot_be_filmed(refused):
    assert refused("video.every=5", **EMBODIED) == [
        "video.every: simulator 'line' draws no pictures; set video.every=0 (from override)"
    ]
    assert refused("video.every=5") == ["video: a text task does not use it; remove it (from override)"]


def test_packages_that_are_missing_are_named_with_their_command(refused, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    lines = refused("video.every=5", **EMBODIED)
    assert lines[1] == (
        "video.every: videos need packages that are not installed: pip install av pillow (from override)"
    )


def test_evaluations_that_are_not_filmed_are_told(run, manager, monkeypatch: pytest.MonkeyPatch):
    spec = manager.get("simulators", "line")
    filmed = replace(spec, provides=SimulatorCapabilities(render=True))
    get = manager.get
    monkeypatch.setattr(manager, "get", lambda kind, name: filmed if name == "line" else get(kind, name))
    assert check(run("video.every=20", "eval.every=10", **EMBODIED), manager) == []
    assert check(run("video.every=15", "eval.every=10", **EMBODIED), manager) == [
        "video.every: 15 is no multiple of eval.every=10; evaluations are filmed after steps that are "
        "multiples of both, and after the last (from override)"
    ]


def test_settings_of_videos_without_any_have_no_effect(run, manager):
    assert check(run("video.fps=10", **EMBODIED), manager) == [
        "video.fps: has no effect while video.every is 0 (from override)"
    ]
