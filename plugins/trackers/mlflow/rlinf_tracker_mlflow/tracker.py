"""A run of rlinf as a run of MLflow."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.api import Tracker
from rlinf_core.errors import ConfigError
from rlinf_tracker_mlflow.config import MLflowConfig

FOLDER = "mlflow"  # below the run's output folder
RUN_ID = "rlinf-run-id"  # the file there that holds the id which a resumed run goes on with
PARAMETERS_A_REQUEST = 100  # as many as MLflow takes


class MLflow(Tracker):
    """Settings become parameters, samples, pictures and videos artifacts; MLflow's global run is not used."""

    config: MLflowConfig

    def start(self, output: Path, run_config: Mapping[str, Any], resumed_step: int) -> None:
        self._mlflow = _imported(self.config)
        folder = (output / FOLDER).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        uri = self.config.uri or f"sqlite:///{folder / 'mlflow.db'}"
        self._client = self._mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
        self._run_id = self._open(folder, self.config.run_name or output.resolve().name)
        self._log_config(run_config, resumed_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        entities = self._mlflow.entities
        values = [
            entities.Metric(_key(name), float(value), now, step, run_id=self._run_id)
            for name, value in metrics.items()
        ]
        if values:
            self._client.log_batch(self._run_id, metrics=values, synchronous=True)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
        self._client.log_text(self._run_id, lines, f"samples/step-{step:06}.jsonl")

    def log_picture(self, step: int, name: str, file: Path) -> None:
        self._client.log_artifact(self._run_id, str(file), f"{Path(name).parent}/step-{step:06}")

    def log_video(self, step: int, name: str, file: Path) -> None:
        self.log_picture(step, name, file)

    def finish(self, error: BaseException | None) -> None:
        if error is None:
            self._client.set_terminated(self._run_id, "FINISHED")
            return
        self._client.set_tag(self._run_id, "error", f"{type(error).__name__}: {error}"[:5000])
        killed = isinstance(error, KeyboardInterrupt)
        self._client.set_terminated(self._run_id, "KILLED" if killed else "FAILED")

    def _open(self, folder: Path, name: str) -> str:
        """The id of the run: of the one that is resumed, else of a new one."""
        file = folder / RUN_ID
        if file.exists():
            run_id = file.read_text().strip()
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        experiment = self._client.get_experiment_by_name(self.config.experiment)
        if experiment is not None:
            where = experiment.experiment_id
        else:
            place = _beside_database(self._client.tracking_uri)
            where = self._client.create_experiment(self.config.experiment, artifact_location=place)
        run_id = str(self._client.create_run(where, run_name=name, tags=self.config.tags).info.run_id)
        file.write_text(run_id)
        return run_id

    def _log_config(self, run_config: Mapping[str, Any], resumed_step: int) -> None:
        """Parameters cannot change, so those of a resumed run stay; its config is one more artifact."""
        self._client.log_dict(self._run_id, dict(run_config), f"config/step-{resumed_step:06}.yaml")
        known = self._client.get_run(self._run_id).data.params
        new = {_key(name): value for name, value in flattened(run_config) if _key(name) not in known}
        parameters = [self._mlflow.entities.Param(name, value) for name, value in new.items()]
        for first in range(0, len(parameters), PARAMETERS_A_REQUEST):
            part = parameters[first : first + PARAMETERS_A_REQUEST]
            self._client.log_batch(self._run_id, params=part, synchronous=True)


def flattened(tree: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested settings, named `algo.name` or `trackers.0.name`, with values as text."""
    if isinstance(tree, Mapping) and tree:
        for name, value in tree.items():
            yield from flattened(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(tree, Sequence) and not isinstance(tree, str) and tree:
        for number, value in enumerate(tree):
            yield from flattened(value, f"{prefix}.{number}" if prefix else str(number))
    elif prefix:
        yield prefix, tree if isinstance(tree, str) else json.dumps(tree)


def _beside_database(uri: str) -> str | None:
    """Where artifacts of a local database go, which MLflow leaves below the working directory otherwise."""
    path = uri.removeprefix("sqlite:///")
    return None if path == uri else (Path(path).resolve().parent / "artifacts").as_uri()


def _imported(config: MLflowConfig) -> Any:  # Any: a module without stable types
    # All are read from the environment alone, telemetry's when the package is imported.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(config.timeout_s))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        module = importlib.import_module("mlflow")
        importlib.import_module("mlflow.entities")
        if not config.uri or config.uri.startswith("sqlite:"):
            importlib.import_module("alembic")
            importlib.import_module("sqlalchemy")
    except ImportError as err:
        raise ConfigError(
            f"the tracker mlflow needs its packages: pip install mlflow-skinny sqlalchemy alembic ({err})"
        ) from err
    for name in ("mlflow.store.db.utils", "alembic"):  # which announce every step of making a database
        logging.getLogger(name).setLevel(logging.WARNING)
    return module


def _key(name: str) -> str:
    """A name with nothing that MLflow refuses in names, such as `@`."""
    return re.sub(r"[^\w\-./: ]", "_", name)[:250]
