"""Checks of the settings of worker processes that step environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.check_isolation import isolation_problems
from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import EnvPoolConfig, RunConfig
from rlinf_core.isolation import interpreter


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
    yield from isolation_problems(config, "simulator", spec, pool.isolated, "env_pool.isolated")


def env_pool_warnings(config: RunConfig, specs: Mapping[str, Any]) -> Iterable[str]:
    """Settings without effect beside others."""
    pool, spec, defaults = config.env_pool, specs.get("simulator"), EnvPoolConfig()
    if spec is None or pool.processes or (pool.isolated != "never" and interpreter(spec) is not None):
        return
    for name in ("timeout_s", "restarts"):
        if getattr(pool, name) != getattr(defaults, name):
            key = f"env_pool.{name}"
            yield f"{key}: has no effect while env_pool.processes is 0{came(config, key)}"
