"""Runs that cannot start or must end: one clear line, the right exit code, and nothing lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.plugins import hookimpl, plugins
from rlinf_core.plugins.loading import new_relay


@pytest.mark.parametrize(
    ("setting", "says", "meant", "package"),
    [
        ("--backend=fspd", "no backends plugin 'fspd'", "'fsdp'", "rlinf-backend-fspd"),
        ("--engine=locl", "no engines plugin 'locl'", "'local'", "rlinf-engine-locl"),
        ("reward=exat", "no rewards plugin 'exat'", "'exact'", "rlinf-reward-exat"),
        ("trackers=[tensorbord]", "no trackers plugin 'tensorbord'", "'tensorboard'", "rlinf-tracker-ten"),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_meant_and_where_others_are(
    refused: Any, train: Any, setting: str, says: str, meant: str, package: str
) -> None:
    said = refused(*train, setting)
    assert says in said
    assert f"Did you mean {meant}?" in said
    assert f"pip install {package}" in said


def no_tokenizer(model: Path) -> None:
    for file in model.glob("tokenizer*"):
        file.unlink()


def cut_weights(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def other_architecture(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "nonesuch"}))


def no_json(model: Path) -> None:
    (model / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (no_tokenizer, "cannot load the tokenizer"),
        (cut_weights, "cannot load the weights"),
        (no_weights, "cannot load the weights"),
        (other_architecture, "cannot load the configuration"),
        (no_json, "cannot load the configuration"),
    ],
)
def test_a_model_that_lacks_a_part_is_refused(
    refused: Any, train: Any, finished: Any, tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(finished.output / "export", model)
    harm(model)
    assert refused(*train, "model.preset=''", f"model.path={model}").startswith(
        f"model.path: {says} of {model}: "
    )
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_text_file_is_no_model(refused: Any, train: Any, tmp_path: Path) -> None:
    said = refused(*train, "model.preset=''", f"model.path={tmp_path / 'sums.jsonl'}")
    assert "is a file but no GGUF" in said


def test_data_is_sought_on_a_hub_only_under_names_that_can_be_there(refused: Any, train: Any) -> None:
    said = refused(*train, "--data=./nodir")
    assert said.startswith("data directory ./nodir does not exist (current directory: ")


def test_responses_longer_than_the_context_leave_no_room(refused: Any, train: Any) -> None:
    said = refused(*train, "sampling.max_new_tokens=300")
    assert said.startswith("sampling.max_new_tokens: 300 leaves no token for a prompt in the context of 256")


def test_a_warm_start_without_demonstrations_is_refused_before_anything_starts(
    refused: Any, train: Any, tmp_path: Path
) -> None:
    said = refused(*train, "warm_start.steps=2")
    assert "row 0 of the dataset has no demonstration" in said
    assert "data.demonstration_key" in said
    assert not (tmp_path / "run").exists()


def test_a_prompt_limit_that_leaves_nothing_is_refused(refused: Any, train: Any) -> None:
    said = refused(*train, "train.max_prompt_tokens=2")
    assert said == "train.max_prompt_tokens=2 drops every prompt; the shortest has 5 tokens"


@pytest.mark.parametrize("fault", ["no file", "no function", "syntax"])
def test_a_reward_that_cannot_be_loaded_is_named(
    refused: Any, train: Any, tmp_path: Path, fault: str
) -> None:
    file = tmp_path / "my_reward.py"
    if fault != "no file":
        file.write_text("def scores(:" if fault == "syntax" else "def scores(prompts): ...")
    said = refused(*train, f"reward={file}:score")
    assert str(file) in said
    says = {"no file": "does not exist", "no function": "Did you mean 'scores'?", "syntax": "SyntaxError"}
    assert says[fault] in said


def test_a_reward_that_hangs_is_named_by_its_function(refused: Any, train: Any, tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text("import time\ndef score(**_):\n    time.sleep(60)\n")
    said = refused(*train, f"reward={file}:score", "reward_pool.timeout_s=0.2")
    assert "2 of 2 samples could not be scored" in said
    assert f"({file}:score) took longer than 0.2 s (reward_pool.timeout_s)" in said


class Observer:
    """Raises in the hook that a test names."""

    def __init__(self, hook: str, error: Exception) -> None:
        self.hook, self.error = hook, error
        self.calls = 0

    def fail(self, hook: str) -> None:
        if hook == self.hook:
            self.calls += 1
            raise self.error

    @hookimpl
    def rlinf_configure(self) -> None:
        self.fail("configure")

    @hookimpl
    def rlinf_step_end(self) -> None:
        self.fail("step_end")


def observe(monkeypatch: pytest.MonkeyPatch, observer: Observer) -> None:
    relay = new_relay()
    relay.register(observer, name="watcher")
    monkeypatch.setattr(plugins(), "_observers", relay.hook)


def test_an_observer_may_refuse_the_settings(
    refused: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe(monkeypatch, Observer("configure", ConfigError("train.steps: 2 is above this machine's limit")))
    assert refused(*train) == "train.steps: 2 is above this machine's limit"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("hook", ["configure", "step_end"])
def test_an_observer_that_fails_is_reported_once_and_the_run_goes_on(
    rlinf: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    observer = Observer(hook, ZeroDivisionError("division by zero"))
    observe(monkeypatch, observer)
    ended = rlinf(*train, "checkpoint.export=false")
    assert ended.code == 0
    assert observer.calls == (2 if hook == "step_end" else 1)
    warning = f"observer watcher failed in rlinf_{hook}: ZeroDivisionError: division by zero; the run goes on"
    assert ended.out.count(warning) == 1
    assert (tmp_path / "run" / "checkpoints" / "latest").readlink() == Path("step_2")


def test_trackers_get_the_samples_that_the_run_logs(
    rlinf: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[dict[str, Any]] = []
    tracker = plugins().get("trackers", "csv").load()
    monkeypatch.setattr(tracker, "log_samples", lambda self, step, samples: got.extend(samples))
    assert rlinf(*train, "trackers=[csv]", "checkpoint.export=false").code == 0
    logged = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert got == logged
    assert {record["step"] for record in got} == {1, 2}


KILLS_ITS_WORKER = """
import os, signal

def score(**_):
    os.kill(os.getppid(), signal.SIGKILL)
    raise SystemExit
"""


def test_a_dead_worker_ends_the_run_with_its_name_and_exit_code_1(train: Any, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(KILLS_ITS_WORKER)
    args = (*train, "--engine=local", "engine.restarts=0", f"reward={tmp_path / 'deadly.py'}:score")
    command = [sys.executable, "-c", "from rlinf_core.cli.app import main; main()", *args]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.stderr.startswith("error: reward"), ended.stderr
    assert "SIGKILL" in ended.stderr
    assert ended.stderr.count("\n") == 1
