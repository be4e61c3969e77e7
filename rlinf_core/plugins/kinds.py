"""The kinds of plugins: entry-point group, spec class and distribution prefix of each."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf_core.errors import PluginNotFoundError, suggest
from rlinf_core.plugins.specs import (
    AlgorithmSpec,
    BackendSpec,
    DatasetSpec,
    EngineSpec,
    ModelSpec,
    PluginSpec,
    RewardSpec,
    RolloutSpec,
    SimulatorSpec,
    ToolSpec,
    TrackerSpec,
)

SPECS: Mapping[str, type[PluginSpec]] = {
    spec.kind: spec
    for spec in (
        AlgorithmSpec,
        BackendSpec,
        RolloutSpec,
        ModelSpec,
        SimulatorSpec,
        EngineSpec,
        TrackerSpec,
        RewardSpec,
        DatasetSpec,
        ToolSpec,
    )
}
OBSERVERS = "observers"  # the kind without a spec: such a module only listens to a run's events

KINDS = (*SPECS, OBSERVERS)

_SHORT = {"algorithms": "algo", "simulators": "sim"}


def short(kind: str) -> str:
    """What distributions of this kind are called by: `algo` in `rlinf-algo-NAME`."""
    return _SHORT.get(kind, kind.removesuffix("s"))


def group(kind: str) -> str:
    """The entry-point group of a kind."""
    return f"rlinf.{kind}"


def kind_named(text: str) -> str:
    """The kind that a user means by `algorithms`, `algorithm` or `algo`."""
    known = {alias: kind for kind in KINDS for alias in (kind, kind.removesuffix("s"), short(kind))}
    if text.lower() in known:
        return known[text.lower()]
    raise PluginNotFoundError(f"no kind of plugin {text!r}; kinds: {', '.join(KINDS)}.{suggest(text, known)}")
