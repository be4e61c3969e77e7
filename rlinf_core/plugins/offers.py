"""What installed distributions offer, read from their metadata without importing anything of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from rlinf_core.plugins.kinds import group


@dataclass(frozen=True)
class Offer:
    """One entry point. `load` imports the plugin module it names."""

    name: str
    distribution: str
    version: str
    load: Callable[[], Any]  # Any: a module, or for tests any object with hook implementations

    @property
    def source(self) -> str:
        """The distribution with its version, for messages."""
        return f"{self.distribution} {self.version}".strip()


Offers = Callable[[str], list[Offer]]


def installed(kind: str) -> list[Offer]:
    """The offers of every installed distribution, sorted by name and distribution."""
    found = [_offer(entry) for entry in metadata.entry_points(group=group(kind))]
    return sorted(found, key=lambda offer: (offer.name, offer.distribution))


def _offer(entry: metadata.EntryPoint) -> Offer:
    dist = entry.dist
    return Offer(
        name=entry.name,
        distribution=dist.name if dist else "?",
        version=dist.version if dist else "",
        load=lambda: importlib.import_module(entry.module),
    )
