"""Tells observers of a run's events; an observer that fails is reported, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlinf_core.errors import RlinfError


class Events:
    """The `rlinf_run_*`, `rlinf_step_*` and `rlinf_checkpoint_*` hooks of every observer."""

    def __init__(self, hooks: Any, warn: Callable[[str], None]) -> None:  # Any: pluggy's relay
        self._hooks = hooks
        self._warn = warn

    def ask(self, hook: str, **facts: Any) -> None:  # Any: what the hook's specification lists
        """As `tell`, but an observer may refuse by an `RlinfError`, which is raised."""
        self._call(hook, facts, RlinfError)

    def tell(self, hook: str, **facts: Any) -> None:  # Any: as above
        """Call the hook of each observer with the facts it takes, the last registered first."""
        self._call(hook, facts, ())

    def _call(self, hook: str, facts: dict[str, Any], raised: type[Exception] | tuple[()]) -> None:
        for implementation in reversed(getattr(self._hooks, hook).get_hookimpls()):
            taken = {name: facts[name] for name in implementation.argnames}
            try:
                implementation.function(**taken)
            except raised:
                raise
            except Exception as err:  # the border of an observer: it must not end the run
                self._warn(
                    f"observer {implementation.plugin_name} failed in {hook}: {type(err).__name__}: {err}; "
                    "the run goes on"
                )
