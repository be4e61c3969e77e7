"""Registers the engines that ship with the core."""

from __future__ import annotations

from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import EngineSpec


@hookimpl
def rlinf_register_engines() -> list[EngineSpec]:
    """Offer `local` and `inline`."""
    return [
        EngineSpec(
            name="local",
            summary="One process per rank on this machine",
            target="rlinf_core.builtin.engines.local:LocalEngine",
            config=LocalConfig,
        ),
        EngineSpec(
            name="inline",
            summary="Everything in the calling process, for debuggers (one rank)",
            target="rlinf_core.builtin.engines.inline:InlineEngine",
        ),
    ]
