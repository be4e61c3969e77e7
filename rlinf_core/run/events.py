"""Tells observers of a run's events; an observer that fails is reported, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Events:
    """The `rlinf_run_*`, `rlinf_step_*` and `rlinf_checkpoint_*` hooks of every observer."""

    def __init__(self, hooks: Any, warn: Callable[[str], None]) -> None:  # Any: pluggy's relay
        self._hooks = hooks
        self._warn = warn

    def tell(self, hook: str, **facts: Any) -> None:  # Any: what the hook's specification lists
        """Call the hook of each observer with the facts it takes, the last registered first."""
        for implementation in reversed(getattr(self._hooks, hook).get_hookimpls()):
            taken = {name: facts[name] for name in implementation.argnames}
            try:
                implementation.function(**taken)
            except Exception as err:  # the border of an observer: it must not end the run
                self._warn(
                    f"observer {implementation.plugin_name} failed in {hook}: {type(err).__name__}: {err}; "
                    "the run goes on"
                )
