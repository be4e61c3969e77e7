"""The simulators of a rank: in its own process, or over worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlinf_core.comm.routing import interval_sizes
from rlinf_core.isolation import interpreter
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import plugins
from rlinf_core.pool.simulator import SimulatorPool

if TYPE_CHECKING:
    from rlinf_core.api import Simulator
    from rlinf_core.config.schema import Component, RunConfig
    from rlinf_core.pool.part import Lives

TURNS = 2  # groups of environments that take turns with a policy in the same process


def groups_beside(config: RunConfig, num_envs: int) -> int:
    """Groups of a rank's environments where the policy is in the same process: with worker processes, one
    is stepped while the policy looks at another."""
    processes = config.env_pool.processes
    return min(config.schedule.stages or min(TURNS, processes), num_envs) if processes else 1


def build_simulators(
    config: RunConfig, num_envs: int, groups: int, seed: int, lives: Lives
) -> list[Simulator]:
    """One for each group of environments; processes are spread over the groups, at least one for each."""
    component = cast("Component", config.simulator)
    spec = plugins().get(component.kind, component.name)
    size, pool = -(-num_envs // groups), config.env_pool
    apart = pool.isolated != "never" and interpreter(spec) is not None
    if not (pool.processes or apart or pool.isolated == "always"):
        return [spec.load()(component.config, size, seed + i) for i in range(groups)]
    program = Program.of(spec, pool.isolated)
    made: list[Simulator] = []
    try:
        for i, processes in enumerate(interval_sizes(max(groups, pool.processes), groups)):
            made.append(
                SimulatorPool(
                    component.config,
                    size,
                    seed + i,
                    name=component.name,
                    target=spec.target,
                    program=program,
                    processes=processes,
                    timeout_s=pool.timeout_s,
                    lives=lives,
                )
            )
    except BaseException:
        for simulator in made:
            simulator.close()
        raise
    return made
