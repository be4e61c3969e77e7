"""The contract of rollout engines, kept by the adapter over a double of SGLang, for both releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlinf_core.testing import rollout_parts
from rlinf_core.testing.checks import checks_of
from rlinf_core.testing.subject import CheckSkipped, Subject, subject

RELEASES = (pytest.param("0.5.10", marks=pytest.mark.slow), "0.5.23")


@pytest.fixture(scope="module", params=RELEASES)
def checked(request: pytest.FixtureRequest, doubled: Callable[[str], Path]) -> Iterator[Subject]:
    known = dict(rollout_parts._engines)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(doubled(request.param))
        yield subject("rollouts", "sglang", {"memory_fraction": 0.01})
    for key in rollout_parts._engines.keys() - known.keys():
        rollout_parts._engines.pop(key).close()


@pytest.mark.parametrize("check", checks_of("rollouts"), ids=lambda check: check.__name__)
def test_the_adapter_keeps_the_contract(check: Callable[[Subject], None], checked: Subject) -> None:
    try:
        check(checked)
    except CheckSkipped as skipped:
        pytest.skip(str(skipped))
