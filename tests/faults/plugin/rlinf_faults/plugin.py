"""Registers parts of every kind that fail as they are told to, and an observer that tells the step."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_model_mlp_policy.config import MLPPolicyConfig

from rlinf_core.api import ModelCapabilities, RolloutCapabilities, SimulatorCapabilities
from rlinf_core.plugins import (
    BackendSpec,
    DatasetSpec,
    ModelSpec,
    RewardSpec,
    RolloutSpec,
    SimulatorSpec,
    hookimpl,
)
from rlinf_faults.strike import FOLDER, tell_step

_PARTS = "rlinf_faults.parts"
_LIGHT = "rlinf_faults.light"


@dataclass(frozen=True)
class RowsConfig:
    """Rows of letters."""

    size: int = 64  # rows to train on
    eval_size: int = 8  # rows held out


@dataclass(frozen=True)
class WalkConfig:
    """A walk on a line."""

    limit: int = 4  # decisions of an episode


@hookimpl
def rlinf_register_backends() -> list[BackendSpec]:
    """One."""
    return [
        BackendSpec(
            name="faulty",
            summary="A plain trainer that fails as told",
            target=f"{_PARTS}:FaultyBackend",
        )
    ]


@hookimpl
def rlinf_register_rollouts() -> list[RolloutSpec]:
    """One."""
    return [
        RolloutSpec(
            name="faulty",
            summary="A plain rollout engine that fails as told",
            target=f"{_PARTS}:FaultyRollout",
            provides=RolloutCapabilities(),
        )
    ]


@hookimpl
def rlinf_register_models() -> list[ModelSpec]:
    """One that writes letters, and one that acts."""
    return [
        ModelSpec(
            name="faulty",
            summary="A recurrent model over eight tokens",
            target=f"{_PARTS}:FaultyText",
            provides=ModelCapabilities(modality="text"),
        ),
        ModelSpec(
            name="faulty_policy",
            summary="A perceptron that fails as told",
            config=MLPPolicyConfig,
            target=f"{_PARTS}:FaultyPolicy",
            provides=ModelCapabilities(modality="embodied", continuous_actions=True),
        ),
    ]


@hookimpl
def rlinf_register_rewards() -> list[RewardSpec]:
    """One."""
    return [RewardSpec(name="faulty", summary="The share of a's", target=f"{_LIGHT}:FaultyReward")]


@hookimpl
def rlinf_register_datasets() -> list[DatasetSpec]:
    """One."""
    return [
        DatasetSpec(name="faulty", summary="Letters", config=RowsConfig, target=f"{_LIGHT}:FaultyDataset")
    ]


@hookimpl
def rlinf_register_simulators() -> list[SimulatorSpec]:
    """One."""
    return [
        SimulatorSpec(
            name="faulty",
            summary="A walk on a line",
            config=WalkConfig,
            target=f"{_LIGHT}:FaultySimulator",
            provides=SimulatorCapabilities(),
        )
    ]


@hookimpl
def rlinf_run_start(run: Any) -> None:
    """Tell every process at which step the run is."""
    _tell("start", run.step)


@hookimpl
def rlinf_step_end(run: Any, step: int, metrics: Any) -> None:
    """Tell every process that a step has ended, and note when."""
    _tell("end", step)


def _tell(what: str, step: int) -> None:
    if FOLDER in os.environ:
        folder = Path(os.environ[FOLDER])
        tell_step(folder, step)
        with (folder / "times").open("a") as file:
            file.write(f"{what} {step} {time.time()}\n")
