"""The contract of execution engines, kept by those of the core."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("engines", "inline")
def test_the_inline_engine_keeps_the_contract(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("engines", "local")
def test_the_local_engine_keeps_the_contract(check: Callable[[], None]) -> None:
    check()
