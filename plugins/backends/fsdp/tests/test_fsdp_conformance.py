"""The fsdp backend passes the conformance kit with each of its settings."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("backends", "fsdp")
def test_fsdp_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("backends", "fsdp", config={"sharding": "full", "gradient_checkpointing": True})
def test_fsdp_with_its_options_on_conforms(check: Callable[[], None]) -> None:
    check()
