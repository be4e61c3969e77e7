"""The examples of the page can be used as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlinf_backend_ray.engine import RayEngine
from typer.testing import CliRunner

from rlinf_core.api import EngineNode
from rlinf_core.cli.app import app

PAGE = (Path(__file__).parents[4] / "docs" / "engine-ray.md").read_text()
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
JOB = "model: { name: hf_lm, preset: char-llama }\ndata: sort_digits\nreward: exact\n"


NODES = [  # of the cluster that the page speaks of
    EngineNode("10.0.0.1", 8, "H100", float("inf"), 4, "train"),
    EngineNode("10.0.0.2", 8, "L4", float("inf"), 4, "act"),
]


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayEngine, "nodes", lambda self, ranks: NODES)


def is_accepted(command: str, folder: Path) -> str:
    """What `rlinf config show` says of the settings of a `rlinf train`."""
    (folder / "job.yaml").write_text(JOB)
    words = command.replace("/runs/job.yaml", "job.yaml").replace("job.yaml", str(folder / "job.yaml"))
    given = shlex.split(words)
    assert given[:2] == ["rlinf", "train"]
    shown = CliRunner().invoke(app, ["config", "show", *given[2:]])
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_the_job_for_kubernetes_is_one_of_kuberay_whose_command_is_accepted(tmp_path: Path) -> None:
    job: dict[str, Any] = yaml.safe_load(FILES["rlinf-job.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert "name: ray" in is_accepted(job["spec"]["entrypoint"], tmp_path)
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # as Ray's flags are
        pod = group["template"]["spec"]
        there = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= there


def test_the_job_for_slurm_is_a_script_whose_command_is_accepted(tmp_path: Path) -> None:
    script = FILES["rlinf.sbatch"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert all(line.startswith("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH"))
    (command,) = re.findall(r"rlinf train .*", script.replace("\\\n", " "))
    numbered = command.replace("$head", "10.0.0.1").replace("$((8 * SLURM_NNODES))", "16")
    assert "ranks: 16" in is_accepted(numbered, tmp_path)


@pytest.mark.parametrize("command", re.findall(r"^rlinf train (?:.*\\\n)*.*", PAGE, re.MULTILINE))
def test_the_commands_of_the_page_are_accepted(command: str, tmp_path: Path) -> None:
    line = re.sub(r"\s#.*", "", command.replace("\\\n", " ")).replace(" --resume RUN", "")
    assert "name: ray" in is_accepted(f"{line} -c job.yaml", tmp_path)
