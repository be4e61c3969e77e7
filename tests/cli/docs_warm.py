"""Commands and programs of pages as forks of one process that has imported what takes them seconds to import.

A fork is a process of its own, with the folder, the environment and the path for modules that it was asked to
have. The process forks before it computes anything, has one thread, and imports no plugin, which a page may
have installed in its own folder.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

IMPORTED = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "transformers.generation",
    "transformers.modeling_layers",
    "transformers.modeling_utils",
    "rlinf_core.cli.app",
    "rlinf_core.run.restarts",
)
DEADLINE_S = 300


class Warm:
    """Runs `rlinf`, `pytest` and programs of Python, one at a time; a context that ends its process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "HOME": self._folder.name},
        )

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self, words: list[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run` would give; past the deadline the exit code is that of SIGALRM."""
        out, err = (Path(self._folder.name) / name for name in ("out", "err"))
        asked = [words, str(folder), dict(environment), str(out), str(err)]
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def takes(words: list[str]) -> bool:
    """Whether a fork can do it."""
    program = words[0] == "python" and len(words) > 1 and words[1].endswith(".py")
    return program or words[0] in ("rlinf", "pytest")


def serve() -> None:
    """Fork for each line of the input, and answer with the exit code."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        words, folder, environment, out, err = json.loads(line)
        if not (child := os.fork()):
            _become(words, folder, environment, [os.devnull, out, err])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps(code), flush=True)


def _become(words: list[str], folder: str, environment: dict[str, str], files: list[str]) -> NoReturn:
    from rlinf_core.leaving import leave

    signal.alarm(DEADLINE_S)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, (file, how) in enumerate(zip(files, "rww", strict=True)):
        with open(file, how) as opened:
            os.dup2(opened.fileno(), number)
    own = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    sys.path[:1] = [folder if words[0] == "python" else str(Path(sys.executable).parent), *own]
    importlib.invalidate_caches()
    code = 1
    try:
        _main(words)()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    leave(code)


def _main(words: list[str]) -> Callable[[], object]:
    sys.argv = words[1:] if words[0] == "python" else words
    if words[0] == "python":
        return lambda: runpy.run_path(str(Path(words[1]).resolve()), run_name="__main__")
    if words[0] == "pytest":
        import pytest

        return pytest.console_main
    from rlinf_core.cli.app import run

    return run


if __name__ == "__main__":
    serve()
