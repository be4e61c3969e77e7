"""The environment role: simulators whose episodes are chosen by a policy beside them or apart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import NDArray

from rlinf_core.comm.routing import interval_of
from rlinf_core.comm.spans import span
from rlinf_core.roles.episodes import Wave, observation_arrays
from rlinf_core.roles.policy import Apart, Beside, Link, PolicyWorker, Question
from rlinf_core.roles.setup import Spaces, build
from rlinf_core.types import EpisodeRequest, Trajectory
from rlinf_core.worker import Worker, WorkerContext, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.api import Observation, Simulator
    from rlinf_core.comm.remote import ChannelHandle
    from rlinf_core.config.schema import Component, RunConfig

_STRIDE = 0xD1342543DE82EF95  # odd: a decision's seed is its episode's plus a multiple of this
_SEED_MASK = 0x7FFFFFFFFFFFFFFF


@dataclass
class EnvironmentReport:
    """What one rank says of one rollout. `actions` were executed in episodes that were asked for."""

    seconds: float = 0.0
    actions: int = 0


class EnvironmentWorker(Worker):
    """One rank of `num_envs` environments in `groups` that take turns: while the policy looks at one,
    another is stepped. A group is one simulator."""

    def __init__(self, context: WorkerContext, config: RunConfig, *, num_envs: int, groups: int = 1) -> None:
        super().__init__(context)
        size = -(-num_envs // groups)
        component = cast("Component", config.simulator)
        first = context.seed + context.rank * groups
        self.groups = [_Group(build(component, size, first + i), (context.rank, i)) for i in range(groups)]
        self.link: Link | None = None
        self._beside: tuple[str, ...] = ()  # the policy in this process

    @on_host
    def spaces(self) -> Spaces:
        """What the simulator shows and takes."""
        simulator = self.groups[0].simulator
        return Spaces(dict(simulator.observation_space), simulator.action_space)

    def connect_beside(self, policy: str) -> None:
        """Ask the policy worker of this name, in this process."""
        self._beside = (policy,)
        self.link = Beside(cast("PolicyWorker", self.context.peers[policy]))

    def connect(self, questions: ChannelHandle, answers: ChannelHandle, policies: int) -> None:
        """Ask the `policies` ranks of a policy in other processes."""
        count = len(self.groups)
        first, askers = self.context.rank * count, self.context.world_size * count
        ranks = [interval_of(first + i, askers, policies) for i in range(count)]
        self.link = Apart(questions.connect(self.context.name), answers.connect(self.context.name), ranks)

    @stage
    def rollout(
        self, chunks: Iterator[list[EpisodeRequest]], *, greedy: bool = False
    ) -> Generator[list[Trajectory], None, EnvironmentReport]:
        """Whole episodes, as many at once as there are environments; returns an `EnvironmentReport`."""
        report = EnvironmentReport()
        began = time.perf_counter()
        link = cast("Link", self.link)
        requests = _Requests(chunks)
        playing: deque[_Group] = deque()
        try:
            with self.beside(*self._beside):
                for group in self.groups:
                    if group.start(requests, link, greedy):
                        playing.append(group)
                while playing:
                    group = playing.popleft()
                    finished = group.advance(link, greedy, report)
                    if finished:
                        yield finished
                    if group.wave is not None or group.start(requests, link, greedy):
                        playing.append(group)
        finally:
            for group in self.groups:
                link.goodbye(group.asker)
        report.seconds = time.perf_counter() - began
        return report

    def onload(self) -> None:
        """Bring simulators that can leave the device back."""
        for group in self.groups:
            group.simulator.onload()

    def offload(self) -> None:
        """Let simulators leave the device, where they can; their episodes go on afterwards."""
        for group in self.groups:
            group.simulator.offload()

    def close(self) -> None:
        """End the simulators."""
        for group in self.groups:
            group.simulator.close()


class _Group:
    """Environments that are stepped together. Those without a request repeat the last one off the
    record, as do those whose episode has ended."""

    def __init__(self, simulator: Simulator, asker: tuple[int, int]) -> None:
        self.simulator = simulator
        self.asker = asker
        self.wave: Wave | None = None
        self._seeds: list[int] = []
        self._shown: dict[str, NDArray[Any]] = {}
        self._step = 0

    def start(self, requests: _Requests, link: Link, greedy: bool) -> bool:
        """Begin one episode for each of the next requests; False if there is none."""
        found = requests.take(self.simulator.num_envs)
        if not found:
            return False
        seated = found + [found[-1]] * (self.simulator.num_envs - len(found))
        with span("run", samples=0, name="reset"):
            observation = self.simulator.reset([request.initial_state for request in seated])
        self.wave = Wave(found, self.simulator.max_episode_steps)
        self._seeds = [request.seed for request in seated]
        self._step = 0
        self._ask(observation, link, greedy)
        return True

    def advance(self, link: Link, greedy: bool, report: EnvironmentReport) -> list[Trajectory]:
        """One decision of every environment; the episodes, once all have ended."""
        wave = cast("Wave", self.wave)
        answer = link.answer(self.asker)
        with span("run", samples=self.simulator.num_envs, name="simulate"):
            transition = self.simulator.step(self._commands(answer.sample.actions.numpy()))
            wave.add(self._shown, answer.sample, transition)
        self._step += 1
        if not wave.ended:
            self._ask(transition.observation, link, greedy)
            return []
        self.wave = None
        report.actions += wave.actions
        return wave.trajectories(answer.version)

    def _ask(self, observation: Observation, link: Link, greedy: bool) -> None:
        self._shown = observation_arrays(observation)
        seeds = [_decision_seed(seed, self._step) for seed in self._seeds]
        link.ask(Question(self.asker, self._shown, seeds, greedy))

    def _commands(self, actions: NDArray[Any]) -> NDArray[Any]:
        """What the simulator executes: continuous actions within its box, a chunk axis for discrete."""
        space = self.simulator.action_space
        return actions[:, None] if space.n is not None else actions.clip(space.low, space.high)


class _Requests:
    """Requests one after the other, whatever chunks they came in."""

    def __init__(self, chunks: Iterator[list[EpisodeRequest]]) -> None:
        self._chunks = chunks
        self._waiting: list[EpisodeRequest] = []

    def take(self, count: int) -> list[EpisodeRequest]:
        """The next ones; fewer than asked for only at the end."""
        while len(self._waiting) < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._waiting += chunk
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


def _decision_seed(episode_seed: int, step: int) -> int:
    return (episode_seed + step * _STRIDE) & _SEED_MASK
