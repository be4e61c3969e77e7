"""Runs every benchmark and writes its last line into the page of benchmarks.

A benchmark is a script beside this one that ends with `common.finish`; the others are their helpers. Its
results stand in `docs/benchmarks.md` between `<!-- results of NAME -->` and `<!-- end of NAME -->`. One that
fails keeps its former results, and this command then ends with 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT, say

HERE = Path(__file__).resolve().parent
PAGE = ROOT / "docs" / "benchmarks.md"
ABOUT = ("machine", "versions")
ENDS_WITH_RESULT = re.compile(r"^ +finish\(", re.MULTILINE)
LIMIT_S = 3600


def benchmarks() -> dict[str, Path]:
    """Every script that prints a result."""
    scripts = [path for path in sorted(HERE.glob("*.py")) if path != Path(__file__).resolve()]
    return {path.stem: path for path in scripts if ENDS_WITH_RESULT.search(path.read_text())}


def result_of(script: Path) -> dict[str, Any]:
    """The JSON object of its last line; its rows for people go to the terminal as they come.

    Raises `RuntimeError` where it fails or prints no such line.
    """
    done = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{script.name} ended with {done.returncode} after {len(lines)} lines")
    try:
        result: dict[str, Any] = json.loads(lines[-1])
    except json.JSONDecodeError as err:
        raise RuntimeError(f"the last line of {script.name} is no JSON object: {lines[-1]!r}") from err
    return result


def block(result: dict[str, Any], date: str) -> str:
    """A result as a table, with what it was measured on."""
    rows = [f"| `{key}` | {_plain(value)} |" for key, value in result.items() if key not in ABOUT]
    versions = ", ".join(f"{name} {version}" for name, version in result.get("versions", {}).items())
    measured = f"Measured on {date} with {versions} on {result.get('machine', 'an unnamed machine')}."
    return "\n".join(["| key | value |", "|---|---|", *rows, "", measured])


def _plain(value: Any) -> str:  # Any: a JSON value
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def with_block(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of `name`. Raises `KeyError` where there are none."""
    marked = re.compile(
        rf"(<!-- results of {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL
    )
    if not marked.search(page):
        raise KeyError(f"{PAGE.name} has no marks '<!-- results of {name} -->' and '<!-- end of {name} -->'")
    return marked.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def main() -> None:
    """Run what is asked for, one after the other, and rewrite the page after each."""
    found = benchmarks()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(found)}; none = all")
    names = parser.parse_args().names or list(found)
    if unknown := sorted(set(names) - set(found)):
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are: {', '.join(found)}")
    failed = []
    for name in names:
        say(f"== {name}")
        began = time.monotonic()
        try:
            text = block(result_of(found[name]), datetime.date.today().isoformat())
            PAGE.write_text(with_block(PAGE.read_text(), name, text))
        except (RuntimeError, KeyError, subprocess.TimeoutExpired) as err:
            failed.append(name)
            say(f"failed: {err}")
        say(f"== {name}: {time.monotonic() - began:.0f} s")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
