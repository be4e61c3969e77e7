"""The Meta-World simulator passes the conformance kit, with one task and with several."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("simulators", "metaworld")
def test_one_task_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("simulators", "metaworld", {"task": "MT10", "task_id": True, "max_episode_steps": 9})
def test_ten_tasks_conform(check: Callable[[], None]) -> None:
    check()
