"""OpenVLA-OFT passes the conformance kit, with either head."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("models", "openvla_oft")
def test_the_model_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(
    "models", "openvla_oft", config={"head": "continuous", "chunk": 3, "noise": 0.3, "value_units": 8}
)
def test_a_model_of_numbers_conforms(check: Callable[[], None]) -> None:
    check()
