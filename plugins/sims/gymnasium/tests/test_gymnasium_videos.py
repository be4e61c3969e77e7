"""Runs that are filmed: every number is that of a run which is not, also over worker processes."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.console import Console

from rlinf_core.config.compose import compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import Options
from rlinf_core.errors import ConfigError
from rlinf_core.media.offscreen import Camera
from rlinf_core.media.png import decode_picture
from rlinf_core.run.runner import Runner
from rlinf_core.run.view import View

pytest.importorskip("av")
JOB = (
    "engine=inline",
    "trackers=[]",
    "ranks=1",
    "mode=collocated",
    "simulator.id=InvertedPendulum-v5",
    "simulator.max_episode_steps=12",
    "model.chunk=3",
    "train.steps=2",
    "train.prompts_per_step=4",
    "eval.every=1",
    "eval.samples=4",
    "checkpoint.every=0",
)
TOLD = ("eval/reward", "eval/success", "train/reward", "train/response_length", "train/grad_norm")


@pytest.fixture(scope="module")
def drawing() -> None:
    """Something to draw with."""
    try:
        model = gymnasium.make("InvertedPendulum-v5").unwrapped.model
        Camera(model, 64, {}, shadows=False, simulator="gymnasium").close()
    except ConfigError as err:
        pytest.skip(str(err))


def run(output: Path, *overrides: str) -> list[dict[str, Any]]:
    """The metrics of a run."""
    options = Options(
        simulator="gymnasium",
        model="mlp_policy",
        algo="ppo",
        output=str(output),
        overrides=(*JOB, *overrides),
    )
    config = compose(options)
    with View(config, Console(file=StringIO())) as view:
        Runner(config, dump(config), view, resume=False).run()
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_a_filmed_run_has_the_numbers_of_another_and_its_videos(drawing: None, tmp_path: Path) -> None:
    plain = run(tmp_path / "plain")
    filmed = run(
        tmp_path / "filmed",
        "env_pool.processes=2",
        "video={every: 2, episodes: 2, train: true}",
        "simulator.render_size=64",
    )
    for expected, found in zip(plain, filmed, strict=True):
        assert {name: found.get(name) for name in TOLD} == {name: expected.get(name) for name in TOLD}
    assert not (tmp_path / "plain/videos").exists()
    folder = tmp_path / "filmed/videos"
    assert sorted(path.name for path in folder.iterdir()) == ["step-0", "step-2"]
    names = {path.name for path in (folder / "step-2").iterdir()}
    endings = (".mp4", "-first.png", "-last.png")
    assert names == {f"{kind}-{i}{end}" for kind in ("eval", "train") for i in (0, 1) for end in endings}
    first, last = (
        decode_picture((folder / f"step-2/train-0-{which}.png").read_bytes(), "")[:256].astype(int)
        for which in ("first", "last")
    )
    assert np.abs(first - last).max() > 50, "the pole has moved"
