"""OpenVLA passes the conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("models", "openvla")
def test_the_model_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("models", "openvla", config={"chunk": 3, "temperature": 1.6, "value_units": 8})
def test_a_model_of_chunks_conforms(check: Callable[[], None]) -> None:
    check()
