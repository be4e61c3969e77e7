"""The hooks: `rlinf_register_KIND` offers plugins, the others tell observers of a run's events.

A plugin module carries implementations marked with `hookimpl` under these names, and may leave out
arguments it does not use. Hooks run in the driver only; what changes computation is an interface
method of the plugin's class, never a hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from rlinf_core.plugins.specs import (
        AlgorithmSpec,
        BackendSpec,
        DatasetSpec,
        EngineSpec,
        ModelSpec,
        RewardSpec,
        RolloutSpec,
        SimulatorSpec,
        ToolSpec,
        TrackerSpec,
    )

PROJECT = "rlinf"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def rlinf_register_algorithms() -> list[AlgorithmSpec]:
    """Offer algorithms, under entry-point group `rlinf.algorithms`.

    ```python
    from rlinf_core.api import AlgorithmNeeds
    from rlinf_core.plugins import AlgorithmSpec, hookimpl
    from rlinf_algo_mine.config import MineConfig

    def needs(config: MineConfig) -> AlgorithmNeeds:
        return AlgorithmNeeds(advantage_scope="group", group_size=config.group_size)

    @hookimpl
    def rlinf_register_algorithms() -> list[AlgorithmSpec]:
        return [AlgorithmSpec(name="mine", summary="My algorithm", config=MineConfig, needs=needs,
                              target="rlinf_algo_mine.algorithm:Mine")]
    ```
    """
    return []


@hookspec
def rlinf_register_backends() -> list[BackendSpec]:
    """Offer training backends, under entry-point group `rlinf.backends`.

    ```python
    from rlinf_core.api import BackendCapabilities
    from rlinf_core.plugins import BackendSpec, hookimpl
    from rlinf_backend_mine.config import MineConfig

    @hookimpl
    def rlinf_register_backends() -> list[BackendSpec]:
        return [BackendSpec(name="mine", summary="My trainer", config=MineConfig,
                            provides=BackendCapabilities(reference=True), rollout="mine_rollout",
                            target="rlinf_backend_mine.backend:MineBackend")]
    ```
    """
    return []


@hookspec
def rlinf_register_rollouts() -> list[RolloutSpec]:
    """Offer rollout engines for language models, under entry-point group `rlinf.rollouts`.

    ```python
    from rlinf_core.api import RolloutCapabilities
    from rlinf_core.plugins import RolloutSpec, hookimpl

    @hookimpl
    def rlinf_register_rollouts() -> list[RolloutSpec]:
        return [RolloutSpec(name="mine", summary="My generator", provides=RolloutCapabilities(lora=True),
                            target="rlinf_rollout_mine.rollout:MineRollout")]
    ```
    """
    return []


@hookspec
def rlinf_register_models() -> list[ModelSpec]:
    """Offer models, under entry-point group `rlinf.models`.

    ```python
    from rlinf_core.api import ModelCapabilities
    from rlinf_core.plugins import ModelSpec, hookimpl
    from rlinf_model_mine.config import MineConfig

    @hookimpl
    def rlinf_register_models() -> list[ModelSpec]:
        return [ModelSpec(name="mine", summary="My policy", config=MineConfig,
                          provides=ModelCapabilities(modality="embodied", continuous_actions=True),
                          target="rlinf_model_mine.model:MineModel")]
    ```
    """
    return []


@hookspec
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """Offer simulators, under entry-point group `rlinf.simulators`.

    ```python
    from rlinf_core.plugins import SimulatorSpec, hookimpl
    from rlinf_sim_mine.config import MineConfig

    @hookimpl
    def rlinf_register_simulators() -> list[SimulatorSpec]:
        return [SimulatorSpec(name="mine", summary="My world", config=MineConfig,
                              target="rlinf_sim_mine.simulator:MineSimulator")]
    ```
    """
    return []


@hookspec
def rlinf_register_engines() -> list[EngineSpec]:
    """Offer execution engines, under entry-point group `rlinf.engines`.

    ```python
    from rlinf_core.plugins import EngineSpec, hookimpl

    @hookimpl
    def rlinf_register_engines() -> list[EngineSpec]:
        return [EngineSpec(name="mine", summary="Processes of my cluster",
                           target="rlinf_engine_mine.engine:MineEngine")]
    ```
    """
    return []


@hookspec
def rlinf_register_trackers() -> list[TrackerSpec]:
    """Offer trackers, under entry-point group `rlinf.trackers`.

    ```python
    from rlinf_core.plugins import TrackerSpec, hookimpl

    @hookimpl
    def rlinf_register_trackers() -> list[TrackerSpec]:
        return [TrackerSpec(name="mine", summary="Metrics to my database",
                            target="rlinf_tracker_mine.tracker:MineTracker")]
    ```
    """
    return []


@hookspec
def rlinf_register_rewards() -> list[RewardSpec]:
    """Offer rewards, under entry-point group `rlinf.rewards`.

    ```python
    from rlinf_core.plugins import RewardSpec, hookimpl

    @hookimpl
    def rlinf_register_rewards() -> list[RewardSpec]:
        return [RewardSpec(name="mine", summary="My score", target="rlinf_reward_mine.reward:MineReward")]
    ```
    """
    return []


@hookspec
def rlinf_register_datasets() -> list[DatasetSpec]:
    """Offer datasets, under entry-point group `rlinf.datasets`.

    ```python
    from rlinf_core.plugins import DatasetSpec, hookimpl

    @hookimpl
    def rlinf_register_datasets() -> list[DatasetSpec]:
        return [DatasetSpec(name="mine", summary="My questions", target="rlinf_dataset_mine.dataset:Mine")]
    ```
    """
    return []


@hookspec
def rlinf_register_tools() -> list[ToolSpec]:
    """Offer tools that language models call, under entry-point group `rlinf.tools`.

    ```python
    from rlinf_core.plugins import ToolSpec, hookimpl

    @hookimpl
    def rlinf_register_tools() -> list[ToolSpec]:
        return [ToolSpec(name="mine", summary="Looks words up in my dictionary",
                         target="rlinf_tool_mine.tool:MineTool")]
    ```
    """
    return []


@hookspec
def rlinf_configure(config: Any) -> None:
    """The settings of a run (a `RunConfig`) are composed; raise `ConfigError` to refuse them.

    ```python
    from rlinf_core.errors import ConfigError
    from rlinf_core.plugins import hookimpl

    @hookimpl
    def rlinf_configure(config):
        if config.train.steps > 1000:
            raise ConfigError(f"train.steps: {config.train.steps} is above this machine's limit of 1000")
    ```
    """


@hookspec
def rlinf_run_start(run: Any) -> None:
    """Workers are up, the first step comes next. `run` is the runner; treat it as read-only.

    ```python
    from rlinf_core.plugins import hookimpl

    @hookimpl
    def rlinf_run_start(run):
        print(f"starting with seed {run.config.seed}")
    ```
    """


@hookspec
def rlinf_step_end(run: Any, step: int, metrics: Mapping[str, float]) -> None:
    """A step is done; `metrics` are what the trackers get.

    ```python
    from rlinf_core.plugins import hookimpl

    @hookimpl
    def rlinf_step_end(step, metrics):
        print(step, metrics.get("train/reward"))
    ```
    """


@hookspec
def rlinf_checkpoint_saved(run: Any, step: int, path: Path) -> None:
    """A checkpoint is complete in `path`.

    ```python
    import shutil
    from rlinf_core.plugins import hookimpl

    @hookimpl
    def rlinf_checkpoint_saved(step, path):
        shutil.copytree(path, f"/backup/step_{step}")
    ```
    """


@hookspec
def rlinf_run_end(run: Any, error: BaseException | None) -> None:
    """The run is over; `error` is None for a good end.

    ```python
    from rlinf_core.plugins import hookimpl

    @hookimpl
    def rlinf_run_end(error):
        print("failed" if error else "done")
    ```
    """
