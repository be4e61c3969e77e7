"""What installed distributions offer, read from their metadata without importing anything of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from rlinf_core.errors import suggest
from rlinf_core.plugins.kinds import KINDS, group


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


@dataclass(frozen=True)
class Stray:
    """An entry point in a group `rlinf.X` that no kind of plugin reads."""

    name: str
    distribution: str
    group: str

    @property
    def reason(self) -> str:
        """What is wrong, and what to do."""
        groups = [group(kind) for kind in KINDS]
        return (
            f"{self.distribution} offers {self.name!r} as {self.group!r}, which is no entry-point group of "
            f"rlinf; groups: {', '.join(groups)}.{suggest(self.group, groups)} Mend its pyproject.toml and "
            "install it again"
        )


def strays() -> list[Stray]:
    """What installed distributions offer to groups that do not exist, sorted by group."""
    read = {group(kind) for kind in KINDS}
    unread = sorted({name for name in metadata.entry_points().groups if name.startswith("rlinf.")} - read)
    found = [(each, name) for name in unread for each in metadata.entry_points(group=name)]
    return [Stray(each.name, each.dist.name if each.dist else "?", name) for each, name in found]


def _offer(entry: metadata.EntryPoint) -> Offer:
    dist = entry.dist
    return Offer(
        name=entry.name,
        distribution=dist.name if dist else "?",
        version=dist.version if dist else "",
        load=lambda: importlib.import_module(entry.module),
    )
