"""The examples of docs/data-and-rewards.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rlinf_core.api.reward import RewardItem
from rlinf_core.builtin.datasets.config import JsonlConfig
from rlinf_core.builtin.datasets.files import Jsonl
from rlinf_core.builtin.rewards.config import PythonConfig
from rlinf_core.builtin.rewards.python import PythonReward
from rlinf_core.plugins import plugins
from rlinf_core.roles.reward_pool import PoolReward, RewardPool

PAGE = Path(__file__).parents[3] / "docs" / "data-and-rewards.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The titled blocks of the page as files, and there as the current directory."""
    for name, text in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGE.read_text(), re.S):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_data_file_is_read_with_the_keys_of_the_recipe(folder: Path) -> None:
    section = yaml.safe_load((folder / "sums.yaml").read_text())["data"]
    assert section.pop("name") == "jsonl"
    row = Jsonl(JsonlConfig(**section), "train", 0)[1]
    assert (row.prompt, row.answer, row.demonstration) == ("4+5=", "9", "9")


def test_the_reward_function_gives_what_its_docstring_says(folder: Path) -> None:
    reward = PythonReward(PythonConfig("./my_reward.py:score"))
    results = reward.score([RewardItem("4+5=", text, answer="9") for text in ("9 ", "8", "nine")])
    assert [result.value for result in results] == [1.0, 0.1, 0.0]


def test_the_reward_class_runs_in_a_pool(folder: Path) -> None:
    pool = RewardPool([PoolReward("parity", "parity:Parity")])
    scored = pool.score([RewardItem("", text) for text in ("4", "5", "five")])
    pool.close()
    assert [(score.value, score.verdicts["parity"]) for score in scored] == [
        (1.0, "ok"),
        (0.0, "ok"),
        (0.0, "unparsable"),
    ]


def test_every_shipped_dataset_and_reward_is_on_the_page() -> None:
    page = PAGE.read_text()
    for kind in ("datasets", "rewards"):
        shipped = [info.name for info in plugins().info(kind) if info.distribution == "rlinf-core"]
        assert [name for name in shipped if f"`{name}`" not in page] == []
