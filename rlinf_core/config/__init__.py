"""Settings: their shape, how they are composed from layers, checked, shown and written.

`compose.compose(Options(...))` makes a `RunConfig`; `check.check` tells whether it can work.
"""

from rlinf_core.config.options import Options
from rlinf_core.config.schema import Component, RunConfig

__all__ = ["Component", "Options", "RunConfig"]
