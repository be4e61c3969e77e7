"""What engines do with all their hosts: names that differ, and one end for all."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rlinf_core.errors import ConfigError
from rlinf_core.hosting.link import LinkedHost

AT_EXIT_S = 1.0  # that hosts may take to end when the interpreter exits; people wait for their prompt
_TERMINATE_S = 0.4


def refuse_doubled_names(engine: str, names: Sequence[str]) -> None:
    """Raises `ConfigError` for a name that two hosts have."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigError(f"engine {engine}: host names must differ; given twice: {', '.join(doubled)}")


def end_hosts(hosts: Sequence[LinkedHost], timeout_s: float) -> None:
    """Ask every process to end, terminate all if one has not after `timeout_s`, then kill what is left."""
    for host in hosts:
        host.ask_to_stop()
    if not _all_end(hosts, timeout_s):
        for host in hosts:
            host.process.ask_to_end()
        _all_end(hosts, _TERMINATE_S)
    for host in hosts:
        host.finish()


def _all_end(hosts: Sequence[LinkedHost], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    ended = [host.process.wait(max(0.0, end - time.monotonic())) for host in hosts]
    return all(ended)
