"""Calls of the command line in this process, and a finished run to spoil."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlinf_core.cli.app import main

JOB = ("train", "--algo=grpo", "--backend=fsdp", "--engine=inline", "--ranks=1")
SIZES = ("train.steps=2", "train.prompts_per_step=4", "eval.samples=2", "checkpoint.every=1", "trackers=[]")
TASK = ("model.name=hf_lm", "model.preset=char-llama", "--reward=exact", "sampling.max_new_tokens=4")


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class SavedRun:
    """A run of two steps with checkpoints of both, and the file of its prompts."""

    output: Path
    data: Path

    def trainer(self, name: str) -> Path:
        """A file of the latest checkpoint's trainer."""
        return self.output / "checkpoints" / "latest" / "actor" / name

    def content(self) -> dict[str, bytes]:
        """Every file but the logs of workers."""
        files = (path for path in self.output.rglob("*") if path.is_file() and path.parent.name != "logs")
        return {str(path.relative_to(self.output)): path.read_bytes() for path in files}

    def steps(self) -> list[int]:
        """The steps in `metrics.jsonl`."""
        lines = (self.output / "metrics.jsonl").read_text().splitlines()
        return [int(json.loads(line)["step"]) for line in lines]


def write_prompts(path: Path, count: int = 20) -> Path:
    """A file of small additions."""
    rows = ({"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(count))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def rlinf(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """`rlinf ARGS` in this process."""

    def call(*args: object) -> Ended:
        monkeypatch.setattr("sys.argv", ["rlinf", *map(str, args)])
        capfd.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Ended(int(str(code)), *capfd.readouterr())

    return call


@pytest.fixture
def refused(rlinf: Callable[..., Ended]) -> Callable[..., str]:
    """The error of a command that ends by a user's mistake: one line after `error: `, exit code 2."""

    def call(*args: object) -> str:
        ended = rlinf(*args)
        assert ended.code == 2, ended
        assert "Traceback" not in ended.out + ended.err
        assert ended.err.startswith("error: "), ended.err
        assert ended.err.count("\n") == 1, ended.err
        return ended.err.removeprefix("error: ").rstrip("\n")

    return call


@pytest.fixture
def train(tmp_path: Path) -> tuple[str, ...]:
    """The arguments of a small run on a file of prompts, which a test may add to."""
    data = write_prompts(tmp_path / "sums.jsonl")
    return (*JOB, *TASK, *SIZES, f"--data={data}", f"--output={tmp_path / 'run'}")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """A finished run; tests get a copy of it."""
    folder = tmp_path_factory.mktemp("finished")
    run = SavedRun(folder / "run", write_prompts(folder / "sums.jsonl"))
    with pytest.MonkeyPatch.context() as patch:
        args = [*JOB, *TASK, *SIZES, f"--data={run.data}", f"--output={run.output}"]
        patch.setattr("sys.argv", ["rlinf", *args])
        with contextlib.suppress(SystemExit):
            main()
    assert (run.output / "export").exists()
    return run


@pytest.fixture
def saved(finished: SavedRun, tmp_path: Path) -> SavedRun:
    """A copy of a finished run and its data, to spoil."""
    copy = SavedRun(tmp_path / "saved", tmp_path / "saved.jsonl")
    shutil.copytree(finished.output, copy.output, symlinks=True)
    shutil.copy(finished.data, copy.data)
    settings = copy.output / "config.yaml"
    text = settings.read_text().replace(str(finished.data), str(copy.data))
    settings.write_text(text.replace(str(finished.output), str(copy.output)))
    return copy
