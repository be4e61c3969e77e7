"""Checks of plugins that run in environments of their own, and of what is missing for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import Component, RolloutProcessConfig, RunConfig
from rlinf_core.errors import PluginError
from rlinf_core.isolation import interpreter
from rlinf_core.isolation.environments import install_line

if TYPE_CHECKING:
    from rlinf_core.config.resolve import SpecSource
    from rlinf_core.plugins.specs import PluginSpec


def isolation_problems(
    config: RunConfig, section: str, spec: PluginSpec, isolated: str, key: str
) -> Iterable[str]:
    """One line if the environment that is asked for cannot be used."""
    if isolated == "never":
        return
    try:
        there = interpreter(spec) is not None
    except PluginError as err:
        yield f"{section}: {err}; or run without it by {key}=never"
        return
    if isolated == "always" and not there:
        how = f"build it by `{install_line(spec)}`, or" if spec.isolation else "it offers none;"
        yield (
            f"{key}: {section} {spec.name!r} has no environment of its own here; {how} set "
            f"{key}=auto{came(config, key)}"
        )


def rollout_process_problems(config: RunConfig, specs: Mapping[str, Any]) -> Iterable[str]:
    """One line for each thing that cannot work. Any: specs of plugins."""
    spec, process = specs.get("rollout"), config.rollout_process
    if spec is not None:
        yield from isolation_problems(config, "rollout", spec, process.isolated, "rollout_process.isolated")


def rollout_process_warnings(config: RunConfig, specs: Mapping[str, Any]) -> Iterable[str]:
    """Settings without effect beside others. Any: specs of plugins."""
    spec, process = specs.get("rollout"), config.rollout_process
    if spec is not None and spec.isolation is None and process.timeout_s != RolloutProcessConfig().timeout_s:
        key = "rollout_process.timeout_s"
        yield f"{key}: has no effect: rollout {spec.name!r} has no process of its own{came(config, key)}"


def require_packages(config: RunConfig, manager: SpecSource) -> None:
    """Raise `PluginError` if simulator or rollout engine would run here, and what it runs is not here."""
    _require("simulator", config.simulator, config.env_pool.isolated, "env_pool.isolated", manager)
    process = config.rollout_process
    _require("rollout", config.rollout, process.isolated, "rollout_process.isolated", manager)


def _require(section: str, component: Component | None, isolated: str, key: str, manager: SpecSource) -> None:
    if component is None:
        return
    spec = manager.get(component.kind, component.name)
    if spec.isolation is None or (isolated != "never" and interpreter(spec) is not None):
        return
    wanted = dict.fromkeys(name.partition(".")[0] for name in spec.isolation.imports)
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise PluginError(
            f"{section}: {spec.name!r} would run in this environment, which lacks {', '.join(missing)}; give "
            f"it one of its own by `{install_line(spec)}`"
            + (f" and set {key}=auto" if isolated == "never" else "")
        )
