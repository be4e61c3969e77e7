"""Claim: `rlinf --help` and `rlinf plugins list` answer within 0.4 s, as they import nothing heavy.

Both run alternately in processes of their own; the best of several rounds counts, since other work on
the machine only ever adds. Keys: `help_s`, `plugins_list_s`, and the bare interpreter's `python_s`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from common import finish, say

RLINF = str(Path(sys.executable).parent / "rlinf")
COMMANDS = {
    "help_s": [RLINF, "--help"],
    "plugins_list_s": [RLINF, "plugins", "list"],
    "python_s": [sys.executable, "-c", "pass"],
}


def seconds(command: list[str]) -> float:
    """Wall time of one run."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {key: [] for key in COMMANDS}
    for key, command in [*COMMANDS.items()] * rounds:
        taken[key].append(seconds(command))
    for key, values in taken.items():
        say(f"{key:15} best {min(values):.3f}  " + " ".join(f"{value:.3f}" for value in values))
    finish({key: round(min(values), 3) for key, values in taken.items()}, "rlinf-core", "typer")


if __name__ == "__main__":
    main()
