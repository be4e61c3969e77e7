"""What the page of porting names on our side exists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from rlinf_core.config.show import settings_table
from rlinf_core.plugins import plugins

PAGE = (Path(__file__).resolve().parents[3] / "docs/porting.md").read_text()
ROWS = re.findall(r"^\| (`.*?) \| (`.*?) \| .*\|$", PAGE.partition("\n## verl")[2], re.MULTILINE)
OURS = {key.partition("=")[0]: key for _, ours in ROWS for key in re.findall(r"`([\w.=]+)`", ours)}
DEFAULTS = PAGE.partition("## Defaults that differ")[2].partition("\n## ")[0]
SECTIONS = {
    "algo": "algorithms",
    "backend": "backends",
    "rollout": "rollouts",
    "model": "models",
    "data": "datasets",
    "simulator": "simulators",
}


def _keys() -> set[str]:
    """Every setting of the core, and of any plugin of the repository that a section may name."""
    keys = set(re.findall(r"^\| `([\w.]+)` ", settings_table(), re.MULTILINE))
    for section, kind in SECTIONS.items():
        keys.add(f"{section}.name")
        for info in plugins().info(kind):
            keys |= {f"{section}.{each.name}" for each in fields(plugins().get(kind, info.name).config)}
    return keys


KEYS = _keys()


def test_the_tables_are_read():
    assert len(ROWS) > 100
    assert {"algo.group_size", "train.mini_batches", "placement", "algo.kl_estimator"} <= set(OURS)


@pytest.mark.parametrize("key", OURS)
def test_a_key_of_the_tables_exists(key):
    assert key in KEYS


@pytest.mark.parametrize("key", re.findall(r"^\| `([\w.]+)` = ", DEFAULTS, re.MULTILINE))
def test_a_key_whose_default_differs_exists(key):
    assert key in KEYS
