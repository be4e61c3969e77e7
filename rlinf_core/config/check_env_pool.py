"""Checks of the settings of worker processes that step environments."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.check_schedule import came
from rlinf_core.config.resolve import SpecSource
from rlinf_core.config.schema import EnvPoolConfig, RunConfig
from rlinf_core.errors import PluginError
from rlinf_core.isolation import interpreter
from rlinf_core.isolation.environments import install_line


def env_pool_problems(config: RunConfig, specs: Mapping[str, Any], needs: AlgorithmNeeds) -> Iterable[str]:
    """One line for each thing that cannot work. Any: specs of plugins."""
    pool, spec = config.env_pool, specs.get("simulator")
    if spec is None:
        return
    episodes = config.train.num_envs or config.train.prompts_per_step * needs.group_size
    if pool.processes > episodes:
        yield (
            f"env_pool.processes: {pool.processes} processes of {episodes} environments leave some without; "
            f"choose {episodes} or fewer{came(config, 'env_pool.processes')}"
        )
    if pool.isolated == "never":
        return
    try:
        there = interpreter(spec) is not None
    except PluginError as err:
        yield f"simulator: {err}; or run without it by env_pool.isolated=never"
        return
    if pool.isolated == "always" and not there:
        how = f"build it by `{install_line(spec)}`, or" if spec.isolation else "it offers none;"
        yield (
            f"env_pool.isolated: simulator {spec.name!r} has no environment of its own here; {how} set "
            f"env_pool.isolated=auto{came(config, 'env_pool.isolated')}"
        )


def require_simulator(config: RunConfig, manager: SpecSource) -> None:
    """Raise `PluginError` if the simulator would run here, and what it runs is not installed here."""
    if config.simulator is None:
        return
    spec = manager.get(config.simulator.kind, config.simulator.name)
    if spec.isolation is None or (config.env_pool.isolated != "never" and interpreter(spec) is not None):
        return
    wanted = dict.fromkeys(name.partition(".")[0] for name in spec.isolation.imports)
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise PluginError(
            f"simulator: {spec.name!r} would run in this environment, which lacks {', '.join(missing)}; give "
            f"it one of its own by `{install_line(spec)}`"
            + (" and set env_pool.isolated=auto" if config.env_pool.isolated == "never" else "")
        )


def env_pool_warnings(config: RunConfig, specs: Mapping[str, Any]) -> Iterable[str]:
    """Settings without effect beside others."""
    pool, spec, defaults = config.env_pool, specs.get("simulator"), EnvPoolConfig()
    if spec is None or pool.processes or (pool.isolated != "never" and interpreter(spec) is not None):
        return
    for name in ("timeout_s", "restarts"):
        if getattr(pool, name) != getattr(defaults, name):
            key = f"env_pool.{name}"
            yield f"{key}: has no effect while env_pool.processes is 0{came(config, key)}"
