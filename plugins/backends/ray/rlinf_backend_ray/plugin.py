"""Registers the execution engine `ray`."""

from __future__ import annotations

from rlinf_backend_ray.config import RayConfig
from rlinf_core.plugins import EngineSpec, hookimpl


@hookimpl
def rlinf_register_engines() -> list[EngineSpec]:
    """The one engine of this distribution."""
    return [
        EngineSpec(
            name="ray",
            summary="One process per rank on the machines of a Ray cluster",
            target="rlinf_backend_ray.engine:RayEngine",
            config=RayConfig,
        )
    ]
