"""`rlinf config` over an invented distribution of plugins that the real discovery finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = """
from dataclasses import dataclass
from rlinf_core.api.capabilities import AlgorithmNeeds, ModelCapabilities
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import *

@dataclass(frozen=True)
class GroupConfig:
    group_size: int = 4  # responses per prompt
    width: float = 0.2  # of the trust region

def needs(config):
    return AlgorithmNeeds("group", config.group_size)

def made(cls, name, **more):
    return [cls(name=name, summary=name, target="x:X", **more)]

@hookimpl
def rlinf_register_algorithms(): return made(AlgorithmSpec, "toy_algo", config=GroupConfig, needs=needs)
@hookimpl
def rlinf_register_backends(): return made(BackendSpec, "toy_backend", rollout="toy_rollout")
@hookimpl
def rlinf_register_rollouts(): return made(RolloutSpec, "toy_rollout")
@hookimpl
def rlinf_register_models(): return made(ModelSpec, "toy_model")
@hookimpl
def rlinf_register_datasets(): return made(DatasetSpec, "toy_data")
@hookimpl
def rlinf_register_rewards(): return made(RewardSpec, "toy_reward")
@hookimpl
def rlinf_register_engines(): return made(EngineSpec, "toy_engine")
"""
NAMES = {
    "algorithms": "toy_algo",
    "backends": "toy_backend",
    "rollouts": "toy_rollout",
    "models": "toy_model",
    "datasets": "toy_data",
    "rewards": "toy_reward",
    "engines": "toy_engine",
}
RECIPE = """\
algo: {name: toy_algo, width: 0.5}
backend: toy_backend
model: toy_model
data: toy_data
reward: toy_reward
engine: toy_engine
trackers: []
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "toy_plugins.py").write_text(PLUGIN)
    info = folder / "toy_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugins\nVersion: 1.0\n")
    tables = [f"[rlinf.{kind}]\n{name} = toy_plugins\n" for kind, name in NAMES.items()]
    (info / "entry_points.txt").write_text("\n".join(tables))
    (folder / "toy.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def rlinf(site):
    def called(*arguments):
        code = "from rlinf_core.cli.app import main; main()"
        path = os.pathsep.join([str(site), str(ROOT)])
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            cwd=site,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "100", "NO_COLOR": "1"},
            timeout=60,
            check=False,
        )

    return called


def test_show_prints_every_value_with_its_origin(rlinf):
    shown = rlinf(
        "config", "show", "-c", "toy.yaml", "--steps", "3", "--group-size", "2", "optimizer.lr=1e-4"
    )
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["width:", "0.5", "#", "toy.yaml"] in lines
    assert ["group_size:", "2", "#", "--group-size"] in lines
    assert ["steps:", "3", "#", "--steps"] in lines
    assert ["lr:", "0.0001", "#", "override"] in lines
    assert ["mini_batches:", "1", "#", "default"] in lines
    assert "\x1b" not in shown.stdout


def test_what_show_prints_is_a_recipe_of_the_same_settings(rlinf, site):
    first = rlinf("config", "show", "-c", "toy.yaml", "seed=7")
    (site / "again.yaml").write_text(first.stdout)
    plain = [
        json.loads(rlinf("config", "show", "--json", *given).stdout)["config"]
        for given in (
            ("-c", "toy.yaml", "seed=7"),
            ("-c", "again.yaml"),
        )
    ]
    assert plain[0] == plain[1]
    assert plain[0]["seed"] == 7


def test_json_holds_settings_and_origins(rlinf):
    shown = json.loads(rlinf("config", "show", "-c", "toy.yaml", "--json").stdout)
    assert shown["config"]["algo"] == {"name": "toy_algo", "group_size": 4, "width": 0.5}
    assert shown["config"]["rollout"] == {"name": "toy_rollout"}
    assert shown["origins"]["algo.width"] == "toy.yaml"


def test_mistakes_are_told_without_a_traceback(rlinf):
    shown = rlinf("config", "show", "-c", "toy.yaml", "algo.widht=1", "train.steps=x")
    assert shown.returncode == 2
    assert "Traceback" not in shown.stderr
    assert "algo.widht: unknown key (from override); toy_algo has: group_size, width." in shown.stderr
    assert "Did you mean 'width'?" in shown.stderr
    assert "train.steps: needs a whole number, got 'x'" in shown.stderr


def test_show_checks_what_it_shows(rlinf):
    refused = rlinf("config", "show", "-c", "toy.yaml", "train.mini_batches=7")
    assert refused.returncode == 2
    assert "32 prompts x group size 4 = 128 samples" in refused.stderr
    warned = rlinf("config", "show", "-c", "toy.yaml", "--group-size", "1")
    assert warned.returncode == 0
    assert "warning: algo.group_size: 'toy_algo' compares the samples of a group" in warned.stderr


def test_schema_takes_its_words_from_the_fields_comments(rlinf):
    schema = json.loads(rlinf("config", "schema", "--json").stdout)
    toy = schema["$defs"]["algorithms"]["toy_algo"]
    assert toy["properties"]["width"]["description"] == "of the trust region"
    assert "train.steps: int = 100" in rlinf("config", "schema").stdout


def test_composing_imports_no_heavy_library(site):
    code = (
        "import sys; from pathlib import Path; from rlinf_core.config.compose import Options, compose; "
        "compose(Options(config=(Path('toy.yaml'),))); "
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    path = os.pathsep.join([str(site), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=site, env=env, check=True
    )
    assert done.stdout.strip() == "[]"


def test_train_and_show_take_the_same_flags(rlinf):
    flags = "--algo --backend --rollout --model --data --reward --simulator --engine --config --output --seed"
    for command in (("train",), ("config", "show")):
        page = rlinf(*command, "--help").stdout
        assert [flag for flag in [*flags.split(), "--steps", "--ranks", "--lr"] if flag not in page] == []
