"""The pytest side of the conformance kit: a marker, and `parametrize_with_checks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

TestFunction = Callable[..., None]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, so that `pytest -m conformance` selects the checks."""
    config.addinivalue_line("markers", "conformance: a check of the rlinf conformance kit")


def parametrize_with_checks(
    kind: str,
    name: str,
    config: Mapping[str, Any] | None = None,
    *,
    processes: int = 0,
    isolated: bool = False,
) -> Callable[[TestFunction], TestFunction]:
    """Run a test once for every conformance check of a plugin. Any: values of settings.

    ```python
    from rlinf_core.testing import parametrize_with_checks

    @parametrize_with_checks("algorithms", "mine", config={"group_size": 4})
    def test_mine_conforms(check):
        check()
    ```

    A simulator is checked in `processes` of their own, or `isolated` in its own environment: such checks are
    skipped where that is not installed.
    """
    import pytest

    from rlinf_core.testing.checks import checks_of

    def bound(check: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            from rlinf_core.testing.subject import CheckSkipped, subject

            try:
                check(subject(kind, name, config, processes=processes, isolated=isolated))
            except CheckSkipped as skipped:
                pytest.skip(str(skipped))

        return run

    cases = [
        pytest.param(bound(check), id=f"{name}-{check.__name__}", marks=pytest.mark.conformance)
        for check in checks_of(kind)
    ]
    return pytest.mark.parametrize("check", cases)
