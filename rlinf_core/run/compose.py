"""From settings to a running worker graph: processes, workers, flow and request source."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.api.engine import HostSpec
from rlinf_core.cluster.devices import default_ranks, inventory
from rlinf_core.flows.embodied import EmbodiedFlow
from rlinf_core.flows.reasoning import ReasoningFlow
from rlinf_core.plugins import plugins
from rlinf_core.roles.setup import build
from rlinf_core.run.source import EpisodeSource, Source, TextSource
from rlinf_core.worker import WorkerGroup

if TYPE_CHECKING:
    from rlinf_core.api import AlgorithmNeeds, Engine, Host
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.flows.flow import Flow


MOST_ENVS = 64  # environments at once where train.num_envs does not say


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
    group_size = algorithm_needs(config).group_size
    return TextSource(config, group_size) if config.simulator is None else EpisodeSource(config, group_size)


def start(config: RunConfig) -> RunGraph:
    """Start processes and build workers; whatever fails stops them all again."""
    ranks, threads = ranks_and_threads(config)
    engine: Engine = build(config.engine)
    try:
        if config.simulator is not None:
            return _embodied(config, engine, engine.start(_rank_hosts(config, ranks, threads)))
        reward = HostSpec(name="reward", log=_log(config, "reward"))
        hosts = engine.start([*_rank_hosts(config, ranks, threads), reward])
        return _reasoning(config, engine, hosts[:ranks], hosts[ranks:])
    except BaseException:
        engine.stop()
        raise


def _reasoning(config: RunConfig, engine: Engine, hosts: list[Host], reward_hosts: list[Host]) -> RunGraph:
    keep_reference = algorithm_needs(config).reference
    actor = _group(
        config, "actor", "rlinf_core.roles.actor:ActorWorker", hosts, keep_reference=keep_reference
    )
    rollout = _group(config, "rollout", "rlinf_core.roles.rollout:RolloutWorker", hosts)
    reward = _group(config, "reward", "rlinf_core.roles.reward:RewardWorker", reward_hosts)
    temperature = config.eval.temperature
    eval_sampling = (
        config.sampling if temperature is None else replace(config.sampling, temperature=temperature)
    )
    reference = _reference(config, hosts)
    flow = ReasoningFlow(rollout, reward, actor, reference, config.sampling, eval_sampling)
    return RunGraph(engine, actor, flow, len(hosts))


def _embodied(config: RunConfig, engine: Engine, hosts: list[Host]) -> RunGraph:
    """Environments come first: the trained policy takes its sizes from their spaces."""
    needs = algorithm_needs(config)
    num_envs = config.train.num_envs or min(MOST_ENVS, config.train.prompts_per_step * needs.group_size)
    environment = _group(
        config,
        "environment",
        "rlinf_core.roles.environment:EnvironmentWorker",
        hosts,
        num_envs=-(-num_envs // len(hosts)),
    )
    actor = _group(
        config,
        "actor",
        "rlinf_core.roles.actor:ActorWorker",
        hosts,
        keep_reference=needs.reference,
        spaces=environment.call("spaces").wait()[0],
    )
    reference = _reference(config, hosts)
    flow = EmbodiedFlow(environment, actor, reference, eval_greedy=config.eval.temperature == 0)
    return RunGraph(engine, actor, flow, len(hosts))


def _group(config: RunConfig, name: str, target: str, hosts: list[Host], **extra: object) -> WorkerGroup:
    device = "cuda" if inventory().cuda_devices else "cpu"
    kwargs = {"config": config, **extra}
    return WorkerGroup.create(name, target, hosts, kwargs, [device] * len(hosts), config.seed)


def _reference(config: RunConfig, hosts: list[Host]) -> WorkerGroup | None:
    if not algorithm_needs(config).reference:
        return None
    return _group(config, "reference", "rlinf_core.roles.reference:ReferenceWorker", hosts)


def ranks_and_threads(config: RunConfig) -> tuple[int, int]:
    """Ranks and threads a rank: as configured, else what suits the machine."""
    machine = inventory()
    ranks, threads = default_ranks(machine)
    if config.ranks:
        ranks, threads = config.ranks, max(1, min(4, len(machine.cores) // config.ranks))
    return ranks, threads


def _rank_hosts(config: RunConfig, ranks: int, threads: int) -> list[HostSpec]:
    port = _free_port()
    return [
        HostSpec(
            name=f"rank{rank}",
            threads=threads,
            log=_log(config, f"rank{rank}"),
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


def _log(config: RunConfig, host: str) -> str:
    return str(Path(config.output).absolute() / "logs" / f"{host}.log") if config.output else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
