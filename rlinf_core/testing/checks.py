"""Finds and runs the conformance checks of a kind: the functions `check_KIND_SUBJECT` of its module."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from rlinf_core.errors import ConfigError, PluginError, PluginNotFoundError, summary
from rlinf_core.plugins.kinds import SPECS
from rlinf_core.testing.subject import CheckFailedError, CheckSkipped, Subject

Check = Callable[[Subject], None]


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check; `message` is what to mend, or why it was skipped."""

    name: str
    promise: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str = ""


def checks_of(kind: str) -> list[Check]:
    """The checks of a kind in the order they are written."""
    if kind not in SPECS:
        raise PluginNotFoundError(f"no checks for {kind!r}; kinds with checks: {', '.join(SPECS)}")
    module = importlib.import_module(f"rlinf_core.testing.check_{kind}")
    return [value for name, value in vars(module).items() if name.startswith("check_")]


def run_checks(subject: Subject) -> Iterator[CheckResult]:
    """Run every check of the plugin's kind; one that raises anything has failed. A `ConfigError` or
    `PluginError` of the first one is raised: it is about the settings, or a class that does not load, and the
    others would say the same."""
    for number, check in enumerate(checks_of(subject.spec.kind)):
        name, promise = check.__name__, (check.__doc__ or "").strip()
        try:
            check(subject)
        except CheckSkipped as skipped:
            yield CheckResult(name, promise, "skipped", str(skipped))
        except CheckFailedError as failed:
            yield CheckResult(name, promise, "failed", str(failed))
        except (ConfigError, PluginError) as err:
            if number == 0:
                raise
            yield CheckResult(name, promise, "failed", f"it raised {summary(err)}")
        except Exception as err:  # a plugin may raise anything; its author wants to read it
            yield CheckResult(name, promise, "failed", f"it raised {summary(err)}")
        else:
            yield CheckResult(name, promise, "passed")
