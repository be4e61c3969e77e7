"""Which Python a pool's processes run, and what they start with."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlinf_core.errors import PluginError
from rlinf_core.isolation import child_environment, interpreter
from rlinf_core.isolation.environments import install_line

if TYPE_CHECKING:
    from rlinf_core.plugins.specs import PluginSpec

Isolated = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class Program:
    """An interpreter and all environment variables of its processes."""

    python: str
    variables: Mapping[str, str]

    @classmethod
    def own(cls) -> Program:
        """The interpreter of this process, with its import path."""
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        return cls(sys.executable, {**os.environ, "PYTHONPATH": path})

    @classmethod
    def of(cls, spec: PluginSpec, isolated: Isolated = "auto") -> Program:
        """That of the plugin's own environment; with `auto` only if there is one. Raises `PluginError` for
        `always` where there is none."""
        python = None if isolated == "never" else interpreter(spec)
        if python is not None:
            return cls(str(python), child_environment(spec))
        if isolated == "always":
            raise PluginError(
                f"{spec.kind} plugin {spec.name!r} has no environment of its own here; "
                + (f"build it by `{install_line(spec)}`" if spec.isolation else "it offers none")
            )
        return cls.own()
