"""Plugins of someone else: written outside this tree, built, installed afresh, trained with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from rlinf_core.testing.scaffold import scaffold

ROOT = Path(__file__).resolve().parents[2]
OURS = (
    ROOT,
    ROOT / "plugins/algos/grpo",
    ROOT / "plugins/backends/fsdp",
    ROOT / "plugins/models/hf_lm",
    ROOT / "plugins/models/mlp_policy",
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """The `bin` of an environment with wheels of the core, its plugins, and two new ones."""
    folder = tmp_path_factory.mktemp("third_party")
    authored = [scaffold("algorithms", "mean_baseline", folder), scaffold("simulators", "point", folder)]
    wheels = folder / "wheels"
    for source in (*OURS, *authored):
        _run(
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            wheels,
            source,
        )
    venv.create(folder / "env", with_pip=True)
    python = folder / "env/bin/python"
    _run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", *sorted(wheels.glob("*.whl")))
    _lend_libraries(python)
    return python.parent


def test_the_new_plugins_are_listed_and_installed_from_their_wheels(environment):
    listed = json.loads(_run(environment / "rlinf", "plugins", "list", "--json"))
    found = {(p["kind"], p["name"]): p for p in listed}
    for key in (("algorithms", "mean_baseline"), ("simulators", "point"), ("algorithms", "grpo")):
        assert found[key]["status"] == "ok", found[key]
    where = _run(environment / "python", "-c", "import rlinf_core, rlinf_algo_mean_baseline as a; "
                 "print(rlinf_core.__file__, a.__file__)")  # fmt: skip
    assert all(str(environment.parent) in path for path in where.split())


def test_the_new_plugins_pass_their_checks(environment):
    for kind, name in (("algorithm", "mean_baseline"), ("simulator", "point")):
        checked = json.loads(_run(environment / "rlinf", "plugins", "check", kind, name, "--json"))
        assert [check for check in checked if check["outcome"] == "failed"] == []


def test_the_new_algorithm_trains_a_language_model(environment, tmp_path):
    run = tmp_path / "run"
    _run(
        environment / "rlinf", "train", "--algo", "mean_baseline", "--backend", "fsdp", "--output", run,
        "--steps", "2", "train.prompts_per_step=4", "warm_start.steps=2", "eval.samples=8",
        "checkpoint.every=0",
        "--ranks", "1", "--engine", "inline",
    )  # fmt: skip
    _expect_metrics(run)


def test_grpo_trains_in_the_new_simulator(environment, tmp_path):
    run = tmp_path / "run"
    _run(
        environment / "rlinf", "train", "--simulator", "point", "--model", "mlp_policy", "--algo", "grpo",
        "--backend", "fsdp", "--output", run, "--steps", "2", "train.prompts_per_step=4", "eval.samples=8",
        "checkpoint.every=0", "--ranks", "1", "--engine", "inline",
    )  # fmt: skip
    _expect_metrics(run)


def _expect_metrics(run: Path) -> None:
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["step"] == 2
    assert any(key.startswith("train/") for key in steps[-1])


def _lend_libraries(python: Path) -> None:
    """Let the environment see torch and the like of this one, its own packages first.

    A path line in a .pth file appends the folder but does not read the .pth files in it, so that
    the editable installations of this tree stay behind.
    """
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _run(*command: object) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=Path(sys.prefix).anchor,
        timeout=170,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
