"""Builds plugin objects from a run's settings, by name, in the process that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf_core.plugins import plugins

if TYPE_CHECKING:
    from rlinf_core.api import Algorithm, Dataset, Model, Space, Split, TrainBackend
    from rlinf_core.config.schema import Component, RunConfig


@dataclass(frozen=True)
class Spaces:
    """What a simulator shows and takes."""

    observation: Mapping[str, Space]
    action: Space


def build(component: Component, *args: Any, **kwargs: Any) -> Any:  # Any: the class differs by kind
    """Load the component's class and construct it with its config, then `args`."""
    spec = plugins().get(component.kind, component.name)
    return spec.load()(component.config, *args, **kwargs)


def build_model(config: RunConfig, spaces: Spaces | None = None) -> Model:
    """The run's model, bound to the simulator's spaces where there is one."""
    model: Model = build(config.model)
    if spaces is not None:
        model.bind(spaces.observation, spaces.action)
    return model


def build_backend(config: RunConfig) -> TrainBackend:
    """The run's training backend."""
    backend: TrainBackend = build(config.backend)
    return backend


def build_algorithm(config: RunConfig) -> Algorithm:
    """The run's algorithm."""
    algorithm: Algorithm = build(config.algo)
    return algorithm


def build_dataset(component: Component, split: Split, seed: int) -> Dataset:
    """A dataset split."""
    dataset: Dataset = build(component, split, seed)
    return dataset
