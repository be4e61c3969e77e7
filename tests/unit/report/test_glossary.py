"""Every metric has a meaning, on its page and in reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.report.glossary import MEANINGS, meaning, table

ROOT = Path(__file__).resolve().parents[3]
NAMED = re.compile(r'"((?:train|eval|time|util|sync|env|scale|faults)/[a-z0-9_]+)"')
SHORT = ("trackers=[]", "train.steps=2", "eval.samples=4", "eval.every=1", "checkpoint.export=false")
TEXT = ("train.prompts_per_step=4", "warm_start.steps=0", "--algo=dapo", "algo.dynamic_sampling=false")
CONTROL = (
    "--recipe=fetch-reach-ppo",
    "train.prompts_per_step=2",
    "train.mini_batches=1",
    "warm_start.steps=0",
)


def test_the_page_is_made_of_the_glossary() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    assert page.endswith(table()), "write rlinf_core.report.glossary.table() to the end of docs/metrics.md"


def test_the_longest_name_that_fits_is_meant() -> None:
    assert meaning("time/critic_wait") == MEANINGS["time/NAME_wait"]
    assert meaning("time/critic") == MEANINGS["time/NAME"]
    assert meaning("util/device3") == MEANINGS["util/NAME"]
    assert meaning("train/reward_std") == MEANINGS["train/reward_std"] != MEANINGS["train/reward_NAME"]
    assert meaning("train/my_own") == ""


def test_every_metric_that_the_code_names_is_in_it() -> None:
    files = [*(ROOT / "rlinf_core").rglob("*.py"), *ROOT.glob("plugins/*/*/rlinf_*/*.py")]
    files = [file for file in files if file.parent.name != "testing"]  # logs what no run does
    named = {name for file in files for name in NAMED.findall(file.read_text())}
    assert len(named) > 20
    assert sorted(name for name in named if not meaning(name)) == []


@pytest.mark.parametrize("words", [TEXT, CONTROL], ids=["text", "control"])
def test_every_metric_of_a_run_is_in_it(words: tuple[str, ...], tmp_path: Path) -> None:
    command = "from rlinf_core.cli.app import run; run()"
    args = ["train", "--engine=inline", "--ranks=1", f"--output={tmp_path / 'run'}", *words, *SHORT]
    done = subprocess.run(
        [sys.executable, "-c", command, *args], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    names = {name for record in records for name in record if name != "step"}
    assert len(names) > 30
    assert sorted(name for name in names if not meaning(name)) == []
