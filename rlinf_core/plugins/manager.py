"""Finds plugins by kind and name: names from metadata alone, specs by importing one light module."""

from __future__ import annotations

import functools
import warnings
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlinf_core.errors import PluginError, PluginNotFoundError, suggest
from rlinf_core.plugins.kinds import KINDS, OBSERVERS, SPECS, short
from rlinf_core.plugins.loading import load_module, load_spec, new_relay, register
from rlinf_core.plugins.offers import Offer, Offers, installed, strays
from rlinf_core.plugins.specs import PluginSpec

Status = Literal["ok", "broken", "conflict"]


@dataclass(frozen=True)
class PluginInfo:
    """One line of a listing. `reason` says why a plugin that is not `ok` cannot be used."""

    kind: str
    name: str
    summary: str
    distribution: str
    version: str
    status: Status = "ok"
    reason: str = ""

    def as_dict(self) -> dict[str, str]:
        """JSON-able."""
        return asdict(self)


class PluginManager:
    """The plugins of this process. `offers` maps a kind to what is offered; tests pass their own."""

    def __init__(self, offers: Offers = installed) -> None:
        self._find = offers
        self._offers: dict[str, list[Offer]] = {}
        self._specs: dict[tuple[str, str], PluginSpec] = {}
        self._observers: Any = None  # pluggy's hook relay, whose attributes are the hooks

    def names(self, kind: str) -> list[str]:
        """Every name offered, sorted; imports nothing of the plugins."""
        return sorted({offer.name for offer in self.offers(kind)})

    def get(self, kind: str, name: str) -> Any:  # Any: the spec's class differs by kind
        """The spec of one plugin.

        Raises `PluginNotFoundError` for an unknown name, `PluginError` for a broken plugin, one made
        for another API version, or a name that two distributions offer.
        """
        if (kind, name) not in self._specs:
            self._specs[kind, name] = load_spec(self._only_offer(kind, name), kind)
        return self._specs[kind, name]

    def info(self, kind: str) -> list[PluginInfo]:
        """What is offered, working or not; never raises for a plugin's fault."""
        return [self._info(kind, offer) for offer in self.offers(kind)]

    def observers(self) -> Any:  # Any: pluggy's relay
        """The hooks of all `rlinf.observers` modules: `observers().rlinf_step_end(run=..., ...)`.

        A broken observer is left out with a warning that says why.
        """
        if self._observers is None:
            relay = new_relay()
            for offer in self.offers(OBSERVERS):
                try:
                    module = self._observer(offer)
                except PluginError as err:
                    warnings.warn(f"{err}; it observes nothing in this run", RuntimeWarning, stacklevel=2)
                else:
                    relay.register(module)
            self._observers = relay.hook
        return self._observers

    def offers(self, kind: str) -> list[Offer]:
        """The entry points of a kind."""
        if kind not in KINDS:
            raise PluginNotFoundError(
                f"no kind of plugin {kind!r}; kinds: {', '.join(SPECS)}.{suggest(kind, SPECS)}"
            )
        if kind not in self._offers:
            self._offers[kind] = self._find(kind)
        return self._offers[kind]

    def _only_offer(self, kind: str, name: str) -> Offer:
        found = [offer for offer in self.offers(kind) if offer.name == name]
        if not found:
            raise PluginNotFoundError(self._unknown(kind, name))
        if len(found) > 1:
            raise PluginError(_conflict(kind, name, found))
        return found[0]

    def _unknown(self, kind: str, name: str) -> str:
        names = self.names(kind)
        hint = suggest(name, names)
        install = f"rlinf-{short(kind)}-{name.replace('_', '-')}"
        told = f"no {kind} plugin {name!r}; installed: {', '.join(names) or 'none'}.{hint} "
        for stray in strays():
            if stray.name == name:
                return told + stray.reason
        return (
            f"{told}A plugin that is not installed may come with: pip install {install}; "
            f"one of your own: pip install -e its folder"
        )

    def _info(self, kind: str, offer: Offer) -> PluginInfo:
        told = functools.partial(
            PluginInfo, kind, offer.name, distribution=offer.distribution, version=offer.version
        )
        same = [other for other in self.offers(kind) if other.name == offer.name]
        if len(same) > 1:
            return told("", status="conflict", reason=_conflict(kind, offer.name, same))
        try:
            if kind == OBSERVERS:
                return told(_first_line(self._observer(offer)))
            return told(self.get(kind, offer.name).summary)
        except PluginError as err:
            return told("", status="broken", reason=str(err))

    def _observer(self, offer: Offer) -> Any:  # Any: a module
        module = load_module(offer, OBSERVERS)
        register(new_relay(), module, offer, OBSERVERS)
        return module


@functools.cache
def plugins() -> PluginManager:
    """The plugins installed in this environment."""
    return PluginManager()


def _conflict(kind: str, name: str, offers: list[Offer]) -> str:
    sources = " and ".join(offer.source for offer in offers)
    return (
        f"{kind} plugin {name!r} is offered by {sources}; "
        f"uninstall one: pip uninstall {offers[-1].distribution}"
    )


def _first_line(module: Any) -> str:
    return (getattr(module, "__doc__", None) or "").strip().partition("\n")[0]
