"""Environments in worker processes: simulators conform there, and training loses nothing by their deaths."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks(
    "simulators", "gymnasium", {"id": "InvertedPendulum-v5", "max_episode_steps": 20}, processes=2
)
def test_a_simulator_conforms_in_processes(check: Callable[[], None]) -> None:
    check()
