"""Builds plugin objects from a run's settings, by name, in the process that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlinf_core.agents.setup import described, make_turns
from rlinf_core.errors import ConfigError
from rlinf_core.functions import load_function
from rlinf_core.plugins import plugins

if TYPE_CHECKING:
    from torch import nn

    from rlinf_core.agents.turns import Turns
    from rlinf_core.api import (
        Algorithm,
        AlgorithmNeeds,
        Dataset,
        Model,
        Space,
        Split,
        TextProcessor,
        Tool,
        TrainBackend,
    )
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


def algorithm_needs(config: RunConfig) -> AlgorithmNeeds:
    """What the run's algorithm needs with its config."""
    needs: AlgorithmNeeds = plugins().get(config.algo.kind, config.algo.name).needs(config.algo.config)
    return needs


def policy_alone(needs: AlgorithmNeeds) -> AlgorithmNeeds:
    """The same without workers that only training asks."""
    return replace(needs, reference=False, critic="none" if needs.critic == "own" else needs.critic)


def model_ranks(config: RunConfig) -> int:
    """How many ranks hold one trained model together."""
    ranks: int = plugins().get(config.backend.kind, config.backend.name).model_ranks(config.backend.config)
    return ranks


def build_model(config: RunConfig, spaces: Spaces | None = None) -> Model:
    """The run's policy, bound to the simulator's spaces where there is one."""
    needs = algorithm_needs(config)
    return _model(config.model, spaces, needs, values=needs.critic == "head")


def build_critic(config: RunConfig, spaces: Spaces | None = None) -> Model:
    """The model of a critic of its own: of the policy's kind where no other is named."""
    return _model(config.critic or config.model, spaces, algorithm_needs(config), values=True)


def _model(component: Component, spaces: Spaces | None, needs: AlgorithmNeeds, *, values: bool) -> Model:
    model: Model = build(component)
    if spaces is not None:
        model.bind(spaces.observation, spaces.action)
        model.set_logprob_level(needs.logprob_level)
    if values:
        model.add_value_head()
    return model


def build_tools(config: RunConfig) -> dict[str, Tool]:
    """The run's tools by the names that the model calls them. Raises `ConfigError` for a name that is there
    twice."""
    tools: dict[str, Tool] = {}
    for number, component in enumerate(config.tools):
        tool: Tool = build(component)
        tool.name = tool.name or component.name
        tool.description = tool.description or plugins().get(component.kind, component.name).summary
        if tool.name in tools:
            raise ConfigError(f"tools.{number}: there is a tool {tool.name!r} already; leave one out")
        tools[tool.name] = tool
    return tools


def build_turns(config: RunConfig, processor: TextProcessor) -> Turns:
    """How the model talks with the run's tools, of which prompts tell from now on where they are chats."""
    if config.agent.program:
        load_function(
            config.agent.program, "agent.program"
        )  # a name that is wrong is told before workers start
    tools = build_tools(config)
    try:
        if config.agent.turns == "chat":
            processor.describe_tools(described(tools))
        return make_turns(processor, tools, config.agent)
    finally:
        for tool in tools.values():
            tool.close()


def build_backend(config: RunConfig) -> TrainBackend:
    """The run's training backend."""
    backend: TrainBackend = build(config.backend)
    return backend


def build_acting_module(config: RunConfig, model: Model) -> nn.Module:
    """The module of a policy that acts, with adapters where the trainer has them."""
    if not config.lora.rank:
        return model.module(config.seed)
    return build_backend(config).acting_module(model, config.lora, config.seed)


def build_algorithm(config: RunConfig) -> Algorithm:
    """The run's algorithm."""
    algorithm: Algorithm = build(config.algo)
    return algorithm


def build_dataset(component: Component, split: Split, seed: int) -> Dataset:
    """A dataset split."""
    dataset: Dataset = build(component, split, seed)
    return dataset
