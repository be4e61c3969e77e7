"""Shared by the benchmarks: the machine, the versions, running a command, and the last line."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "benchmarks"
PEER_PYTHON = ROOT / ".venvs" / "peers" / "bin" / "python"


def machine() -> str:
    """Processor and number of usable cores."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def versions(*names: str) -> dict[str, str]:
    """Installed versions of distributions, as this interpreter sees them."""
    return {name: importlib.metadata.version(name) for name in names}


def say(text: str) -> None:
    """A row for people."""
    print(text, file=sys.stderr, flush=True)


def finish(result: Mapping[str, Any], *packages: str) -> None:
    """The last line: one JSON object with the machine and the versions."""
    print(json.dumps({**result, "machine": machine(), "versions": versions(*packages)}))


def run(command: Sequence[str], threads: int, log: Path) -> None:
    """Run a command with a thread budget; its output goes to `log`, which an error shows."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    with log.open("w") as file:
        code = subprocess.run(command, env=env, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT).returncode
    if code:
        raise SystemExit(f"{' '.join(command)} failed with {code}:\n{log.read_text()[-3000:]}")
