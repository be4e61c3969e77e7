"""Runs of a tiny job: in this process, or as the command that a user starts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.cli.app import main
from rlinf_core.comm.stream import Stream
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.plugins import plugins
from rlinf_core.run.checkpoint import CheckpointStore
from rlinf_core.run.compose import make_source
from rlinf_core.run.compose import start as start_workers
from rlinf_core.run.planning import prepare
from rlinf_core.types import Sample

REWARD = '''
import time

def partial(prompts, responses, answers, metas):
    """The share of characters that are right."""
    return [sum(a == b for a, b in zip(r, x)) / len(x) for r, x in zip(responses, answers)]

def slow(prompts, responses, answers, metas):
    time.sleep(0.02 * len(responses))
    return partial(prompts, responses, answers, metas)
'''
TINY = (
    "trackers=[]",
    "warm_start.steps=4",
    "train.prompts_per_step=4",
    "train.steps=3",
    "eval.samples=8",
    "eval.every=2",
)
QUICKSTART = ("model=hf_lm", "model.preset=char-llama", "data=sort_digits", "sampling.max_new_tokens=8")


@pytest.fixture
def test_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugins beside this file can be named, here and in worker processes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "plugins"))
    plugins.cache_clear()
    yield
    plugins.cache_clear()


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error, without what comes before it."""
        return self.err[self.err.index("error: ") :] if "error: " in self.err else ""


@dataclass
class Job:
    """A tiny run in a folder of its own."""

    folder: Path
    more: tuple[str, ...] = ()
    output: Path = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.folder / "run"
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "partial_reward.py").write_text(REWARD)

    def args(self, *more: str, engine: str = "inline", ranks: int = 1) -> list[str]:
        """The command line of a new run."""
        reward = f"--reward={self.folder / 'partial_reward.py'}:partial"
        chosen = [] if any(arg.startswith("--reward") for arg in (*self.more, *more)) else [reward]
        base = ["train", "--algo=grpo", "--backend=fsdp", f"--engine={engine}", f"--ranks={ranks}"]
        return [*base, f"--output={self.output}", *QUICKSTART, *chosen, *TINY, *self.more, *more]

    def train(self, *more: str) -> Done:
        """Run in this process with the inline engine."""
        return invoke(*self.args(*more))

    def resume(self, *more: str) -> Done:
        """Continue in this process."""
        return invoke("train", f"--resume={self.output}", *more)

    def metrics(self) -> list[dict[str, Any]]:
        """All records of `metrics.jsonl`."""
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]

    def numbers(self) -> list[dict[str, Any]]:
        """The records without what depends on the clock, or on which weights a receiver had before."""
        clock = ("time/", "util/", "sync/", "bubble_ratio")
        return [{k: v for k, v in record.items() if not k.startswith(clock)} for record in self.metrics()]

    def weights(self) -> bytes:
        """The exported parameters."""
        return (self.output / "export" / "model.safetensors").read_bytes()

    def run_eval(self) -> list[tuple[list[int], list[int]]]:
        """Token ids of prompts and responses of an evaluation from the latest checkpoint."""
        settings = compose(Options(config=(self.output / "config.yaml",)))
        checkpoint = CheckpointStore(self.output / "checkpoints", 2).latest()
        assert checkpoint is not None
        graph = start_workers(replace(settings, output=""), prepare(settings).first)
        try:
            state = checkpoint.state["algorithm"]
            graph.crew.load(checkpoint.path, state)
            rows = graph.flow.evaluate(Stream.of(make_source(settings).eval()))
            samples = [row for row in rows if isinstance(row, Sample)]
            return [(s.prompt.token_ids.tolist(), s.response_ids.tolist()) for s in samples]
        finally:
            graph.stop()


def invoke(*args: str) -> Done:
    """`rlinf ARGS` in this process."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["rlinf", *args]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
    return Done(code, out.getvalue(), err.getvalue())


class Started:
    """`rlinf ARGS` as a process of its own, with its output in pipes; `before` starts it elsewhere."""

    def __init__(self, args: list[str], before: Sequence[str] = (), **options: Any) -> None:
        program = [*before, sys.executable, "-c", "from rlinf_core.cli.app import run; run()", *args]
        self.process = subprocess.Popen(
            program,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def family(self) -> list[int]:
        """The process and all that it started."""
        found = [self.process.pid]
        for pid in found:
            found += _children(pid)
        return found

    def wait_for(self, output: Path, step: int) -> None:
        """Wait until the step is in the log of metrics."""
        path = output / "metrics.jsonl"
        self.wait_until(lambda: path.exists() and f'"step": {step},' in path.read_text())

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true while the process runs."""
        end = time.monotonic() + 120
        while not true():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, "it takes too long"
            time.sleep(0.005)

    def wait_for_text(self, text: str) -> None:
        """Wait until a line with this text was printed."""
        assert self.process.stdout is not None
        while text not in (line := self.process.stdout.readline()):
            assert line, self.process.communicate()

    def done(self, timeout_s: float = 120) -> Done:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=timeout_s)
        return Done(self.process.returncode, out, err)


def still_alive(pids: list[int]) -> list[int]:
    """Those that still run."""
    return [pid for pid in pids if _state(pid) not in ("", "Z", "X")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A tiny run, not started."""
    return Job(tmp_path / "job")


@pytest.fixture(scope="module")
def new_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Makes tiny runs that a module's tests share."""
    return lambda *more: Job(tmp_path_factory.mktemp("job"), more)


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Started]]:
    """Starts commands, and ends what a failed test leaves."""
    made: list[Started] = []

    def begin(args: list[str], **options: Any) -> Started:
        made.append(Started(args, **options))
        return made[-1]

    yield begin
    for started in made:
        for pid in still_alive(started.family()) if started.process.poll() is None else []:
            os.kill(pid, 9)
        started.process.wait()


@pytest.fixture(scope="session")
def command() -> Callable[..., Done]:
    """`rlinf ARGS` in this process."""
    return invoke


@pytest.fixture(scope="session")
def alive() -> Callable[[list[int]], list[int]]:
    """Those processes of a list that still run."""
    return still_alive
