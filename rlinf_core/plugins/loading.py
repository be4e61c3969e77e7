"""Turns an offered plugin module into checked specs."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import pluggy

from rlinf_core.errors import PluginError, summary
from rlinf_core.plugins import hookspecs
from rlinf_core.plugins.kinds import SPECS
from rlinf_core.plugins.offers import Offer
from rlinf_core.plugins.specs import API_VERSION, PluginSpec


def new_relay() -> pluggy.PluginManager:
    """A pluggy manager that knows rlinf's hooks."""
    relay = pluggy.PluginManager(hookspecs.PROJECT)
    relay.add_hookspecs(hookspecs)
    return relay


def load_module(offer: Offer, kind: str) -> Any:  # Any: a module
    """Import the plugin module. Raises `PluginError` with the cause chained, whatever it raises."""
    try:
        return offer.load()
    except Exception as err:
        raise PluginError(
            f"{_named(offer, kind)} does not import: {summary(err)}. "
            f"Mend, reinstall or remove {offer.distribution}"
        ) from err


def register(relay: pluggy.PluginManager, module: Any, offer: Offer, kind: str) -> None:
    """Register a module's hook implementations; those that no hook knows are refused."""
    try:
        relay.register(module, name=f"{offer.distribution}:{offer.name}")
        relay.check_pending()
    except pluggy.PluginValidationError as err:
        raise PluginError(
            f"{_named(offer, kind)} implements a hook wrongly: {err}. "
            "The hooks and their arguments are listed in rlinf_core.plugins.hookspecs"
        ) from err


def load_spec(offer: Offer, kind: str) -> PluginSpec:
    """Import the plugin module and return its checked spec of that name. Raises `PluginError`."""
    relay = new_relay()
    register(relay, load_module(offer, kind), offer, kind)
    specs = _registered(relay, offer, kind)
    for spec in specs:
        _check_type(spec, offer, kind)
    chosen: list[PluginSpec] = [spec for spec in specs if spec.name == offer.name]
    if len(chosen) != 1:
        names = ", ".join(repr(spec.name) for spec in specs) or "nothing"
        raise PluginError(
            f"{_named(offer, kind)} is offered by its entry point, but rlinf_register_{kind}() "
            f"returned {names}; the entry-point name and the spec's name must be equal, and registered once"
        )
    _check_content(chosen[0], offer, kind)
    return chosen[0]


def _registered(relay: pluggy.PluginManager, offer: Offer, kind: str) -> list[Any]:
    try:
        offered = getattr(relay.hook, f"rlinf_register_{kind}")()
    except Exception as err:
        raise PluginError(f"{_named(offer, kind)} does not register: {summary(err)}") from err
    specs: list[Any] = []
    for returned in offered:
        if not isinstance(returned, list | tuple):
            raise PluginError(
                f"{_named(offer, kind)}: rlinf_register_{kind}() returned {type(returned).__name__}; "
                f"it has to return a list of {SPECS[kind].__name__}"
            )
        specs.extend(returned)
    return specs


def _check_type(spec: Any, offer: Offer, kind: str) -> None:
    if not isinstance(spec, SPECS[kind]):
        raise PluginError(
            f"{_named(offer, kind)}: rlinf_register_{kind}() returned a {type(spec).__name__}; "
            f"it has to return a list of {SPECS[kind].__name__}"
        )


def _check_content(spec: PluginSpec, offer: Offer, kind: str) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if not (isinstance(spec.config, type) and is_dataclass(spec.config)):
        raise PluginError(f"{_named(offer, kind)}: its config {spec.config!r} is not a dataclass")
    if any(each.name == "name" for each in fields(spec.config)):
        raise PluginError(
            f"{_named(offer, kind)}: its config {spec.config.__name__} has a field 'name', which is what "
            "chooses a plugin in settings; call it otherwise"
        )
    module, separator, attribute = spec.target.partition(":")
    if not (module and separator and attribute):
        raise PluginError(
            f"{_named(offer, kind)}: its target {spec.target!r} is not of the form module:Class"
        )
    try:
        fits = SpecifierSet(spec.api).contains(API_VERSION, prereleases=True)
    except InvalidSpecifier as err:
        raise PluginError(
            f"{_named(offer, kind)}: its api {spec.api!r} is not a version range: {err}"
        ) from err
    if not fits:
        raise PluginError(
            f"{_named(offer, kind)} works with rlinf plugin API {spec.api}, this rlinf offers {API_VERSION}; "
            f"install another version of {offer.distribution}, or of rlinf-core"
        )


def _named(offer: Offer, kind: str) -> str:
    return f"{kind} plugin {offer.name!r} ({offer.source})"
