"""The command of the page of videos passes the checks, and the page tells of every setting."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import VideoConfig
from rlinf_core.plugins import plugins

pytest.importorskip("av")
PAGE = (Path(__file__).resolve().parents[4] / "docs/videos.md").read_text()


def test_the_command_of_the_page_passes_the_checks() -> None:
    (recipe, settings, output) = re.findall(r"rlinf train --recipe (\S+) (.*) --output (\S+)", PAGE)[0]
    config = compose(Options(recipe=recipe, overrides=tuple(settings.split()), output=output))
    assert check(config, plugins()) == []
    assert (config.video.every, config.video.fps) == (10, 30)
    assert config.train.steps == 30, "the page shows the videos of step 30"


def test_the_page_names_every_setting() -> None:
    assert [field.name for field in fields(VideoConfig) if f"`video.{field.name}`" not in PAGE] == []
