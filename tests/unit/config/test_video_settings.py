"""Videos that could not be made are refused before anything starts."""

from __future__ import annotations

import importlib.util

import pytest

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


def test_settings_of_videos_without_any_have_no_effect(run, manager):
    assert check(run("video.fps=10", **EMBODIED), manager) == [
        "video.fps: has no effect while video.every is 0 (from override)"
    ]
