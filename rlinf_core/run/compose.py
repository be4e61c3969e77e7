"""From settings to a running worker graph: processes, workers, flow and request source."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlinf_core.api.engine import HostSpec
from rlinf_core.cluster.devices import default_ranks, inventory
from rlinf_core.flows.reasoning import ReasoningFlow
from rlinf_core.plugins import plugins
from rlinf_core.roles.setup import build
from rlinf_core.run.source import Source, TextSource
from rlinf_core.worker import WorkerGroup

if TYPE_CHECKING:
    from rlinf_core.api import AlgorithmNeeds, Engine, Host
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.flows.flow import Flow


@dataclass
class RunGraph:
    """A composed run; `actor` is trained, `flow` is the loop over all groups."""

    engine: Engine
    actor: WorkerGroup
    flow: Flow
    ranks: int


def algorithm_needs(config: RunConfig) -> AlgorithmNeeds:
    """What the run's algorithm needs with its config."""
    spec = plugins().get(config.algo.kind, config.algo.name)
    needs: AlgorithmNeeds = spec.needs(config.algo.config)
    return needs


def make_source(config: RunConfig) -> Source:
    """The request source that fits the task. Raises `DataError` or `ModelError`."""
    return TextSource(config, algorithm_needs(config).group_size)


def start(config: RunConfig) -> RunGraph:
    """Start processes and build workers; whatever fails stops them all again."""
    ranks, threads = _ranks(config)
    engine: Engine = build(config.engine)
    try:
        hosts = engine.start([*_rank_hosts(ranks, threads), HostSpec(name="reward")])
        return _reasoning(config, engine, hosts[:ranks], hosts[ranks:])
    except BaseException:
        engine.stop()
        raise


def _reasoning(config: RunConfig, engine: Engine, hosts: list[Host], reward_hosts: list[Host]) -> RunGraph:
    needs = algorithm_needs(config)
    kwargs = {"config": config}
    device = "cuda" if inventory().cuda_devices else "cpu"

    def group(name: str, target: str, where: list[Host], **extra: object) -> WorkerGroup:
        devices = [device] * len(where)
        return WorkerGroup.create(name, target, where, {**kwargs, **extra}, devices, config.seed)

    actor = group("actor", "rlinf_core.roles.actor:ActorWorker", hosts, keep_reference=needs.reference)
    rollout = group("rollout", "rlinf_core.roles.rollout:RolloutWorker", hosts)
    reward = group("reward", "rlinf_core.roles.reward:RewardWorker", reward_hosts)
    reference = (
        group("reference", "rlinf_core.roles.reference:ReferenceWorker", hosts) if needs.reference else None
    )
    temperature = config.eval.temperature
    eval_sampling = (
        config.sampling if temperature is None else replace(config.sampling, temperature=temperature)
    )
    flow = ReasoningFlow(rollout, reward, actor, reference, config.sampling, eval_sampling)
    return RunGraph(engine, actor, flow, len(hosts))


def _ranks(config: RunConfig) -> tuple[int, int]:
    """Ranks and threads a rank: as configured, else what suits the machine."""
    machine = inventory()
    ranks, threads = default_ranks(machine)
    if config.ranks:
        ranks, threads = config.ranks, max(1, min(4, len(machine.cores) // config.ranks))
    return ranks, threads


def _rank_hosts(ranks: int, threads: int) -> list[HostSpec]:
    port = _free_port()
    return [
        HostSpec(
            name=f"rank{rank}",
            threads=threads,
            env={
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(ranks)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
