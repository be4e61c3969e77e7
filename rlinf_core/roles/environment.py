"""The environment role: simulators and, in the same process, the policy that acts in them."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_core.errors import ModelError
from rlinf_core.roles.episodes import Wave
from rlinf_core.roles.setup import Spaces, build, build_model
from rlinf_core.types import EpisodeRequest, Trajectory
from rlinf_core.worker import Worker, WorkerContext, stage

if TYPE_CHECKING:
    from rlinf_core.api import ActionSample, Observation, Simulator, WeightBucket
    from rlinf_core.config.schema import Component, RunConfig
    from rlinf_core.roles.actor import ActorWorker

_STRIDE = 0xD1342543DE82EF95  # odd: a decision's seed is its episode's plus a multiple of this
_SEED_MASK = 0x7FFFFFFFFFFFFFFF


@dataclass
class EnvironmentReport:
    """What one rank says of one rollout. `actions` were executed in episodes that were asked for."""

    seconds: float = 0.0
    simulator_seconds: float = 0.0
    policy_seconds: float = 0.0
    actions: int = 0


class EnvironmentWorker(Worker):
    """One rank of `num_envs` environments with a copy of the policy."""

    def __init__(self, context: WorkerContext, config: RunConfig, *, num_envs: int) -> None:
        super().__init__(context)
        self.num_envs = num_envs
        simulator = cast("Component", config.simulator)
        self.simulator: Simulator = build(simulator, num_envs, context.seed + context.rank)
        self.model = build_model(config, self.spaces())
        self.module = self.model.module(config.seed).to(context.device).eval()
        self.version = -1

    def spaces(self) -> Spaces:
        """What the simulator shows and takes."""
        return Spaces(dict(self.simulator.observation_space), self.simulator.action_space)

    def sync(self) -> int:
        """Take the current weights of the actor rank in this process; returns their version."""
        actor = cast("ActorWorker", self.context.peers[f"actor[{self.context.rank}]"])
        if self.version != actor.trainer.version:
            self.load_weights(actor.trainer.weights())
        return self.version

    @torch.no_grad()
    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Copy one weight version, completely; returns it. Raises `ModelError` for foreign names."""
        own = self.module.state_dict()
        missing = set(own)
        version = self.version
        for bucket in buckets:
            foreign = sorted(set(bucket.tensors) - set(own))
            if foreign:
                raise ModelError(f"the policy has no weight {foreign[0]!r}; it has {', '.join(sorted(own))}")
            for name, tensor in bucket.tensors.items():
                own[name].copy_(tensor)
            missing -= set(bucket.tensors)
            version = bucket.version
        if missing:
            raise ModelError(f"the trainer sent no weight {min(missing)!r} for the policy that acts")
        self.version = version
        return version

    @stage
    def rollout(
        self, chunks: Iterator[list[EpisodeRequest]], *, greedy: bool = False
    ) -> Generator[list[Trajectory], None, EnvironmentReport]:
        """Whole episodes, `num_envs` at a time; returns an `EnvironmentReport`."""
        report = EnvironmentReport()
        began = time.perf_counter()
        waiting: list[EpisodeRequest] = []
        for chunk in chunks:
            waiting += chunk
            while len(waiting) >= self.num_envs:
                now, waiting = waiting[: self.num_envs], waiting[self.num_envs :]
                yield self._wave(now, greedy, report)
        if waiting:
            yield self._wave(waiting, greedy, report)
        report.seconds = time.perf_counter() - began
        return report

    def close(self) -> None:
        """End the simulator."""
        self.simulator.close()

    def _wave(
        self, requests: list[EpisodeRequest], greedy: bool, report: EnvironmentReport
    ) -> list[Trajectory]:
        """One episode a request, all started together. Environments without a request repeat the
        last one off the record, as do those whose episode has ended."""
        seated = requests + [requests[-1]] * (self.num_envs - len(requests))
        observation = self.simulator.reset([request.initial_state for request in seated])
        wave = Wave(requests, self.simulator.max_episode_steps)
        step = 0
        while not wave.ended:
            began = time.perf_counter()
            shown = observation_arrays(observation)
            sample = self._act(shown, [_decision_seed(request.seed, step) for request in seated], greedy)
            chosen = time.perf_counter()
            transition = self.simulator.step(self._commands(sample.actions.numpy()))
            report.policy_seconds += chosen - began
            report.simulator_seconds += time.perf_counter() - chosen
            wave.add(shown, sample, transition)
            observation = transition.observation
            step += 1
        report.actions += wave.actions
        return wave.trajectories(self.version)

    @torch.inference_mode()
    def _act(self, shown: dict[str, NDArray[Any]], seeds: list[int], greedy: bool) -> ActionSample:
        device = self.context.device
        observations = {name: torch.from_numpy(array).to(device) for name, array in shown.items()}
        sample = self.model.act(self.module, observations, seeds, greedy)
        sample.actions = sample.actions.cpu()
        return sample

    def _commands(self, actions: NDArray[Any]) -> NDArray[Any]:
        """What the simulator executes: continuous actions within its box, a chunk axis for discrete."""
        space = self.simulator.action_space
        return actions[:, None] if space.n is not None else actions.clip(space.low, space.high)


def observation_arrays(observation: Observation) -> dict[str, NDArray[Any]]:
    """`state` and `images/CAMERA`, copied, so that a simulator may reuse its buffers."""
    arrays: dict[str, NDArray[Any]] = {}
    if observation.state is not None:
        arrays["state"] = np.array(observation.state, dtype=np.float32)
    for camera, images in observation.images.items():
        arrays[f"images/{camera}"] = np.array(images)
    return arrays


def _decision_seed(episode_seed: int, step: int) -> int:
    return (episode_seed + step * _STRIDE) & _SEED_MASK
