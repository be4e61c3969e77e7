"""The conformance checks that every model plugin has to pass."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("models", "hf_lm", config={"preset": "char-llama"})
def test_hf_lm_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("models", "hf_lm", config={"preset": "tiny-qwen3", "packing": "never"})
def test_hf_lm_conforms_by_the_padded_forward(check: Callable[[], None]) -> None:
    check()
