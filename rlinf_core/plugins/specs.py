"""What a plugin registers: one light, typed record a plugin; the heavy class stays a string."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlinf_core.api.capabilities import (
    AlgorithmNeeds,
    BackendCapabilities,
    Modality,
    ModelCapabilities,
    RolloutCapabilities,
    SimulatorCapabilities,
)
from rlinf_core.errors import PluginError, summary

API_VERSION = "1.0"


@dataclass(frozen=True)
class NoConfig:
    """For plugins without settings."""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How an environment of a plugin's own is made, for packages that exclude those of others.

    In it are the packages of `lock` alone. The classes that run there import these, the standard library,
    `rlinf_core.api`, `.errors`, `.types`, and of simulators `.simulators` and `.media`, of rollout engines
    `.isolated_rollout`, and nothing else.
    """

    lock: str  # a requirements file inside the plugin's package: "rlinf_sim_x/lock.txt"
    imports: Sequence[str] = ()  # modules that have to import there
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)  # where the user has not set them
    resolve: bool = (
        False  # let pip add what the lock leaves out; else the lock is all, and pins are not checked
    )
    python: str = ">=3.11"  # versions that the lock was made for


@dataclass(frozen=True, kw_only=True)
class PluginSpec:
    """Name, one-line summary, config dataclass and `module:Class` of a plugin."""

    kind: ClassVar[str] = ""

    name: str
    summary: str
    target: str
    config: type = NoConfig
    api: str = ">=1.0,<2.0"  # versions of the rlinf plugin API it works with
    example: Mapping[str, Any] = field(default_factory=dict)  # small settings for the conformance checks
    isolation: Isolation | None = None  # of plugins that can have an environment of their own

    def load(self) -> type[Any]:  # Any: the class differs by kind
        """Import and return the class, in the process that needs it. Raises `PluginError`, with the cause
        chained, if it does not load."""
        module, _, attribute = self.target.partition(":")
        try:
            loaded: type[Any] = getattr(importlib.import_module(module), attribute)
        except Exception as err:  # a plugin's module may raise anything while it is imported
            raise PluginError(
                f"{self.kind} plugin {self.name!r}: its target {self.target!r} does not load: {summary(err)}"
                + _advice(err, module)
            ) from err
        return loaded


def _advice(error: Exception, module: str) -> str:
    """Packages that are missing are the most frequent reason."""
    package = module.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or (error.name or package).partition(".")[0] == package:
        return ""
    return ". Install what the plugin asks for; `rlinf doctor` lists what is missing"


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec(PluginSpec):
    """`needs` maps the config to what the algorithm needs; it runs before any process starts."""

    kind: ClassVar[str] = "algorithms"
    needs: Callable[[Any], AlgorithmNeeds]


@dataclass(frozen=True, kw_only=True)
class BackendSpec(PluginSpec):
    """`rollout` names the rollout engine used when the user names none. `model_ranks` maps the config to how
    many ranks hold one model together, of which the actor has a multiple. `check_model` is the `module:Class`
    of what conformance checks train, for backends that know some architectures alone: a `TinyTextModel` of
    `rlinf_core.testing.fakes` with another module."""

    kind: ClassVar[str] = "backends"
    provides: BackendCapabilities = field(default_factory=BackendCapabilities)
    rollout: str = ""
    model_ranks: Callable[[Any], int] = lambda _config: 1
    check_model: str = ""


@dataclass(frozen=True, kw_only=True)
class RolloutSpec(PluginSpec):
    """With an `isolation`, `target` is an `IsolatedEngine` (`rlinf_core.isolated_rollout`). `checked_with`
    names a model plugin, and its settings, for conformance checks of an engine that cannot run any model."""

    kind: ClassVar[str] = "rollouts"
    provides: RolloutCapabilities = field(default_factory=RolloutCapabilities)
    checked_with: Mapping[str, Any] = field(default_factory=dict, hash=False)  # Any: values of settings


@dataclass(frozen=True, kw_only=True)
class ModelSpec(PluginSpec):
    """`suggests` holds run settings that suit the model, such as `{"optimizer": {"lr": 1e-3}}`; recipes,
    flags and overrides win over them."""

    kind: ClassVar[str] = "models"
    provides: ModelCapabilities = field(default_factory=ModelCapabilities)
    suggests: Mapping[str, Any] = field(default_factory=dict, hash=False)  # Any: YAML values


@dataclass(frozen=True, kw_only=True)
class SimulatorSpec(PluginSpec):
    kind: ClassVar[str] = "simulators"
    provides: SimulatorCapabilities = field(default_factory=SimulatorCapabilities)


@dataclass(frozen=True, kw_only=True)
class EngineSpec(PluginSpec):
    kind: ClassVar[str] = "engines"


@dataclass(frozen=True, kw_only=True)
class TrackerSpec(PluginSpec):
    kind: ClassVar[str] = "trackers"


@dataclass(frozen=True, kw_only=True)
class RewardSpec(PluginSpec):
    kind: ClassVar[str] = "rewards"


@dataclass(frozen=True, kw_only=True)
class ToolSpec(PluginSpec):
    kind: ClassVar[str] = "tools"


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(PluginSpec):
    kind: ClassVar[str] = "datasets"
    modality: Modality = "text"
