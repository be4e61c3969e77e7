"""Settings of every test session: quiet threads, no network, and no test that is skipped unnoticed."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "agg")

EXPECTED = (  # reasons for which a test may be skipped on CI
    "needs a CUDA device",
    "needs the peers (make crosscheck)",
    "the model has no value head",
    "the model has log-probabilities of whole chunks only",
    "a text model does not act",
    "an embodied model has no decoder and no text",
    "the rollout engine cannot interrupt what it generates",
    "the backend has no snapshots",
    "the backend adds up gradients in one order only",
    "the simulator does not save its state",
    "the simulator does not offload",
    "the simulator does not render",
    "the environment of",  # a simulator is not installed
    "the simulator has no expert",
    "the engine runs in the calling process",
    "the engine runs on this machine alone",
    "the engine has no channels between hosts",
    "two nodes on one machine need",  # root, or network namespaces
    "the model does not learn from demonstrations",
    "simulator.images (gymnasium)",  # no OpenGL library on this machine
    "simulator.images (maniskill)",  # no Vulkan driver
    "simulator.images (metaworld)",
    "programs cannot be shut in on this system",  # no Landlock
    "needs a browser",
)


class _Skips:
    """Lists what was skipped; on CI an unexpected reason fails the session."""

    def __init__(self) -> None:
        self.unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if not any(known in reason for known in EXPECTED):
                self.unexpected.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unexpected and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.unexpected:
            terminalreporter.write_line(f"skipped: {line}")


def pytest_configure(config: pytest.Config) -> None:
    """Watch for skips."""
    config.pluginmanager.register(_Skips(), "rlinf-skips")
