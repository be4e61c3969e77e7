"""What the tracker leaves in its database, read back by MLflow's own client."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mlflow import MlflowClient
from rlinf_tracker_mlflow.config import MLflowConfig
from rlinf_tracker_mlflow.tracker import MLflow, flattened

from rlinf_core.errors import ConfigError
from rlinf_core.media.png import encode_png

SETTINGS = {"seed": 7, "algo": {"name": "a", "clip": [0.2, 0.28]}, "reward": None, "trackers": []}
CODE = """
import sys
from pathlib import Path
from rlinf_core.testing.outside import refused_connections
with refused_connections() as tried:
    from rlinf_tracker_mlflow.config import MLflowConfig
    from rlinf_tracker_mlflow.tracker import MLflow
    tracker = MLflow(MLflowConfig())
    tracker.start(Path(sys.argv[1]), {"seed": 7}, 0)
    tracker.log(1, {"train/loss": 0.5})
    tracker.finish(None)
    from mlflow.telemetry import get_telemetry_client
print("tried:", tried, "telemetry:", get_telemetry_client())
"""
QUIETED_BY = ("PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK")


def logged(
    output: Path, settings: Any, resumed_step: int, steps: tuple[int, ...], error: BaseException | None = None
) -> None:
    tracker = MLflow(MLflowConfig(experiment="e", tags={"team": "t"}))
    tracker.start(output, settings, resumed_step)
    for step in steps:
        tracker.log(step, {"train/loss": 1.0 / step, "eval/pass@2": math.nan})
        tracker.log_samples(step, [{"step": step, "answer": "é"}, {"step": step, "answer": [1]}])
    still = output / "eval-0-last.png"
    still.write_bytes(encode_png(np.full((4, 6, 3), 9, np.uint8)))
    (output / "eval-0.mp4").write_bytes(b"film")
    tracker.log_picture(steps[-1], "videos/eval-0", still)
    tracker.log_video(steps[-1], "videos/eval-0", output / "eval-0.mp4")
    tracker.finish(error)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run of three steps that was resumed after its second, with another setting, and then failed."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    folder.mkdir()
    logged(folder, SETTINGS, 0, (1, 2, 3))
    logged(folder, {**SETTINGS, "seed": 8, "new": True}, 2, (3, 4), ValueError("no more"))
    return folder


@pytest.fixture(scope="module")
def client(output: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{output / 'mlflow' / 'mlflow.db'}")


@pytest.fixture(scope="module")
def run(client: MlflowClient) -> Any:
    """The only one there is."""
    (found,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    return found


def artifacts(client: MlflowClient, run: Any, folder: str) -> list[str]:
    return [entry.path for entry in client.list_artifacts(run.info.run_id, folder)]


def test_metrics_are_there_by_step_and_a_step_done_again_has_both_values(
    client: MlflowClient, run: Any
) -> None:
    points = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in points] == [
        (1, 1.0),
        (2, 0.5),
        (3, 1 / 3),
        (3, 1 / 3),
        (4, 0.25),
    ]


def test_a_name_that_mlflow_refuses_is_changed_and_its_value_kept(client: MlflowClient, run: Any) -> None:
    points = client.get_metric_history(run.info.run_id, "eval/pass_2")
    assert [point.step for point in points if math.isnan(point.value)] == [1, 2, 3, 3, 4]


def test_settings_are_parameters_and_those_of_a_resumed_run_an_artifact(
    client: MlflowClient, run: Any, tmp_path: Path
) -> None:
    assert run.data.params == {
        "seed": "7",
        "algo.name": "a",
        "algo.clip.0": "0.2",
        "algo.clip.1": "0.28",
        "reward": "null",
        "trackers": "[]",
        "new": "true",
    }
    names = artifacts(client, run, "config")
    assert names == ["config/step-000000.yaml", "config/step-000002.yaml"]
    kept = client.download_artifacts(run.info.run_id, names[1], str(tmp_path))
    assert yaml.safe_load(Path(kept).read_text())["seed"] == 8


def test_samples_are_lines_of_their_step(client: MlflowClient, run: Any, tmp_path: Path) -> None:
    kept = client.download_artifacts(run.info.run_id, "samples/step-000004.jsonl", str(tmp_path))
    lines = Path(kept).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["answer"] for line in lines] == ["é", [1]]


def test_pictures_and_videos_are_artifacts_of_their_step(
    client: MlflowClient, run: Any, tmp_path: Path
) -> None:
    assert artifacts(client, run, "videos") == ["videos/step-000003", "videos/step-000004"]
    kept = Path(client.download_artifacts(run.info.run_id, "videos/step-000004", str(tmp_path)))
    assert (kept / "eval-0.mp4").read_bytes() == b"film"
    assert (kept / "eval-0-last.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_has_its_name_and_says_how_it_ended(run: Any) -> None:
    assert (run.info.run_name, run.info.status) == ("mine", "FAILED")
    assert (run.data.tags["error"], run.data.tags["team"]) == ("ValueError: no more", "t")


def test_nested_settings_have_one_name_a_leaf() -> None:
    assert dict(flattened({"a": {"b": [1, {"c": "x"}], "d": {}}, "e": True})) == {
        "a.b.0": "1",
        "a.b.1.c": "x",
        "a.d": "{}",
        "e": "true",
    }


def test_runs_can_share_a_database_and_take_any_number_of_settings(output: Path, tmp_path: Path) -> None:
    uri = f"sqlite:///{output / 'mlflow' / 'mlflow.db'}"
    tracker = MLflow(MLflowConfig(uri=uri, experiment="e", run_name="second"))
    tracker.start(tmp_path, {f"k{number}": number for number in range(230)}, 0)
    tracker.finish(KeyboardInterrupt())
    client = MlflowClient(tracking_uri=uri)
    run_id = (tmp_path / "mlflow" / "rlinf-run-id").read_text()
    run = client.get_run(run_id)
    assert len(run.data.params) == 230
    assert (run.info.run_name, run.info.status) == ("second", "KILLED")
    assert run.info.experiment_id == client.get_experiment_by_name("e").experiment_id
    assert run.info.artifact_uri.startswith((output / "mlflow" / "artifacts").as_uri())
    client.delete_run(run_id)


def test_a_fresh_process_reaches_for_no_other_machine(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in QUIETED_BY}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "tried: [] telemetry: None" in done.stdout


def test_a_missing_package_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "alembic", None)
    with pytest.raises(ConfigError, match="pip install mlflow-skinny sqlalchemy alembic"):
        MLflow(MLflowConfig()).start(tmp_path, {}, 0)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"experiment": ""}, {"timeout_s": 0}):
        with pytest.raises(ConfigError, match=rf"trackers\.{next(iter(wrong))} \(mlflow\)"):
            MLflowConfig(**wrong)  # type: ignore[arg-type]
