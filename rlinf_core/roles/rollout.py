"""The rollout role of text tasks: a generation engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from rlinf_core.agents.loop import ToolLoop
from rlinf_core.agents.outside import AgentLoop
from rlinf_core.agents.setup import make_turns
from rlinf_core.agents.toolbox import Toolbox
from rlinf_core.config.schema import of_policy
from rlinf_core.functions import load_function
from rlinf_core.isolated_rollout.proxy import IsolatedRollout
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import plugins
from rlinf_core.roles.engines import Engines
from rlinf_core.roles.setup import build, build_model, build_tools
from rlinf_core.roles.weights import Receiver
from rlinf_core.types import OWN, Request, Sample, Sampling
from rlinf_core.worker import WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.api import RolloutEngine, WeightBucket
    from rlinf_core.config.schema import Component, RunConfig


def build_engine(config: RunConfig, device: str) -> RolloutEngine:
    """Of all policies, where there are several."""
    own = _engine(of_policy(config, OWN), device)
    if not config.policies:
        return own
    return Engines({OWN: own} | {name: _engine(of_policy(config, name), device) for name in config.policies})


def _engine(config: RunConfig, device: str) -> RolloutEngine:
    """In this process, or in one of the environment that the engine's plugin asks for."""
    component = cast("Component", config.rollout)
    spec = plugins().get(component.kind, component.name)
    model = build_model(config)
    if spec.isolation is None:
        engine: RolloutEngine = build(component, model, config.lora, device=device, seed=config.seed)
        return engine
    return IsolatedRollout(
        component.config,
        model,
        config.lora,
        device,
        config.seed,
        name=component.name,
        target=spec.target,
        program=Program.of(spec, config.rollout_process.isolated),
        timeout_s=config.rollout_process.timeout_s,
    )


def make_loop(config: RunConfig, engine: RolloutEngine) -> ToolLoop | AgentLoop | None:
    """What lets responses call the run's tools, or an outside agent call the model, if there are any."""
    agent = config.agent
    if agent.program:
        program = load_function(agent.program, "agent.program")
        each = engine.each if isinstance(engine, Engines) else {OWN: engine}
        talks = {name: make_turns(one.model.processor(), {}, agent) for name, one in each.items()}
        return AgentLoop(engine, program, talks, concurrency=agent.concurrency, episode_s=agent.episode_s)
    if not config.tools:
        return None
    tools = build_tools(config)
    toolbox = Toolbox(tools, timeout_s=agent.timeout_s, concurrency=agent.concurrency)
    turns = make_turns(engine.model.processor(), tools, agent)
    return ToolLoop(engine, toolbox, turns, max_turns=agent.max_turns, overlap=agent.overlap)


class RolloutWorker(Receiver):
    """One rank of text generation."""

    def __init__(self, context: WorkerContext, config: RunConfig) -> None:
        super().__init__(context)
        self.checks = config.train.check_weights
        self.engine = build_engine(config, context.device)
        self.loop = make_loop(config, self.engine)

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one weight version before the next token."""
        return self.engine.load_weights(buckets)

    def weight_dtype(self) -> str:
        """As the engine says."""
        return self.engine.weight_dtype()

    def weight_device(self) -> str:
        """Host memory, where another process has the device."""
        engines = self.engine.each.values() if isinstance(self.engine, Engines) else (self.engine,)
        apart = any(isinstance(engine, IsolatedRollout) for engine in engines)
        return "cpu" if apart else super().weight_device()

    @stage
    def generate(self, chunks: Iterator[list[Request]], *, sampling: Sampling) -> Iterator[list[Sample]]:
        """Finished samples as they finish."""
        yield from (self.loop or self.engine).generate(chunks, sampling)

    def memory_bytes(self) -> float:
        """As the engine says."""
        return self.engine.memory_bytes()

    def onload(self) -> None:
        """Bring weights and cache onto the device."""
        self.engine.onload()

    def offload(self) -> None:
        """Free the device for others."""
        self.engine.offload()

    def close(self) -> None:
        """End the engine, and tools."""
        if self.loop is not None:
            self.loop.close()
        self.engine.close()
