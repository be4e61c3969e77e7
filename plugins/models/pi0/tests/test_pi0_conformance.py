"""The flow policy passes the conformance kit, with each kind of noise."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("models", "pi0", config={"preset": "tiny"})
def test_the_flow_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks(
    "models", "pi0", config={"preset": "tiny", "chunk": 3, "noisy_steps": "one", "train": "all"}
)
def test_a_flow_with_one_noisy_step_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("models", "pi0", config={"preset": "tiny_pi05", "train": "all", "steps": 2})
def test_pi05_conforms(check: Callable[[], None]) -> None:
    check()


@parametrize_with_checks("models", "pi0", config={"preset": "tiny", "noise": "learned", "steps": 2})
def test_a_flow_with_learned_noise_conforms(check: Callable[[], None]) -> None:
    check()
