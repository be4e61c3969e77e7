"""Plugins: what they register (specs), how they are found (manager), and the hooks they implement."""

from rlinf_core.plugins.hookspecs import hookimpl
from rlinf_core.plugins.manager import PluginInfo, PluginManager, plugins
from rlinf_core.plugins.offers import Offer
from rlinf_core.plugins.specs import (
    API_VERSION,
    AlgorithmSpec,
    BackendSpec,
    DatasetSpec,
    EngineSpec,
    Isolation,
    ModelSpec,
    NoConfig,
    PluginSpec,
    RewardSpec,
    RolloutSpec,
    SimulatorSpec,
    ToolSpec,
    TrackerSpec,
)

__all__ = [
    "API_VERSION",
    "AlgorithmSpec",
    "BackendSpec",
    "DatasetSpec",
    "EngineSpec",
    "Isolation",
    "ModelSpec",
    "NoConfig",
    "Offer",
    "PluginInfo",
    "PluginManager",
    "PluginSpec",
    "RewardSpec",
    "RolloutSpec",
    "SimulatorSpec",
    "ToolSpec",
    "TrackerSpec",
    "hookimpl",
    "plugins",
]
