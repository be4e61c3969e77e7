"""The peers, if they are installed, and the comparison of numbers with its record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

TOLERANCE = 1e-6
SMALL = 1e-2  # numbers below are compared as if they were that large
sys.path.insert(0, str(Path(__file__).parent))
from crosscheck_paths import PAGE, peer  # noqa: E402

Near = Callable[..., None]
Found = dict[tuple[str, str], dict[str, tuple[float, float]]]  # (peer, name) -> part -> difference, size
found_key = pytest.StashKey[Found]()


def pytest_configure(config: pytest.Config) -> None:
    """Nothing compared yet."""
    config.stash[found_key] = {}


@pytest.fixture(scope="session")
def verl() -> ModuleType:
    """verl's functions."""
    return peer("verl")


@pytest.fixture(scope="session")
def trl() -> ModuleType:
    """TRL's trainers."""
    return peer("trl")


@pytest.fixture
def near(request: pytest.FixtureRequest) -> Near:
    """`near(name, ours, theirs, part)`: equal to 1e-6 of their largest number (or of `SMALL`).

    The documentation lists the name beside the `PEER` of the test's module.
    """
    found, who = request.config.stash[found_key], request.module.PEER
    page = PAGE.read_text()

    def compare(name: str, ours: Any, theirs: Any, part: str = "") -> None:
        assert f"\n| {who} | {name} |" in page, f"{name!r} of {who} is not listed in docs/{PAGE.name}"
        ours, theirs = (torch.as_tensor(each).detach().double() for each in (ours, theirs))
        assert ours.shape == theirs.shape
        assert torch.isfinite(theirs).all()
        size = float(theirs.abs().max())
        gap = float((ours - theirs).abs().max()) / max(SMALL, size)
        assert gap <= TOLERANCE, f"{name} {part}: {gap:.2e}\nours {ours}\ntheirs {theirs}"
        record = found.setdefault((who, name), {})
        before = record.get(part, (0.0, 0.0))
        record[part] = max(gap, before[0]), max(size, before[1])

    return compare


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The largest difference of every comparison, and the largest number compared."""
    for (who, name), parts in sorted(config.stash[found_key].items()):
        for part, (gap, size) in parts.items():
            terminalreporter.write_line(f"{gap:8.1e} of {size:8.2g}  {who} {name} {part}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A comparison of nothing but zeros proves nothing."""
    found = session.config.stash[found_key]
    empty = [f"{key}: {part}" for key, parts in found.items() for part in parts if parts[part][1] == 0.0]
    if empty and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        sys.stderr.write(f"only zeros were compared in {', '.join(empty)}\n")
