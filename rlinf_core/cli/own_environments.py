"""The environments of their own that installed plugins can have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import SPECS

if TYPE_CHECKING:
    from rlinf_core.isolation.environments import Environment
    from rlinf_core.plugins.specs import PluginSpec


def possible_environments() -> Iterator[tuple[PluginSpec, Environment]]:
    """Of plugins that are not broken, kind by kind, whether they are built or not."""
    from rlinf_core.isolation import environment_of

    for kind in SPECS:
        for info in plugins().info(kind):
            spec = plugins().get(kind, info.name) if info.status == "ok" else None
            environment = environment_of(spec) if spec else None
            if spec and environment:
                yield spec, environment
