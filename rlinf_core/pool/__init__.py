"""Simulators in worker processes, of this Python environment or of another one.

```python
from rlinf_core.pool.simulator import Limits, SimulatorPool
from rlinf_core.isolation.program import Program

pool = SimulatorPool(
    config, num_envs=8, seed=0,                 # as for the simulator itself
    name="gymnasium", target="rlinf_sim_gymnasium.simulator:GymnasiumSimulator",
    program=Program.own(), processes=2,         # or Program(python, variables) of another environment
)
observation = pool.reset(seeds)                 # a `Simulator` like any other
```

In a run, `env_pool.processes=2` does this. In tests, `parametrize_with_checks("simulators", "NAME", {...},
isolated=True)` checks a simulator in the environment that `rlinf plugins install NAME --isolated` has built,
and is skipped where there is none; `processes=2` in place of `isolated` checks it over processes of this one.

A process imports the standard library, numpy, `rlinf_core.api`, `.errors`, `.types` and the simulator, so
this file must import nothing.
"""
