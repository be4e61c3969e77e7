"""The conformance checks that every model plugin has to pass."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("models", "hf_vlm", config={"preset": "tiny-smolvlm"})
def test_hf_vlm_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("models", "hf_vlm", config={"preset": "tiny-qwen2_5_vl"})
def test_hf_vlm_conforms_with_positions_of_three_directions(check: Callable[[], None]) -> None:
    check()
