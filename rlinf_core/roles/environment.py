"""The environment role: simulators whose episodes are chosen by a policy beside them or apart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf_core.comm.routing import interval_of
from rlinf_core.comm.spans import span
from rlinf_core.roles.episodes import Seats, observation_arrays
from rlinf_core.roles.policy import Apart, Beside, Link, PolicyWorker, Question
from rlinf_core.roles.setup import Spaces, build
from rlinf_core.types import EpisodeRequest, Trajectory
from rlinf_core.worker import Worker, WorkerContext, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.api import Observation, Simulator
    from rlinf_core.comm.remote import ChannelHandle
    from rlinf_core.config.schema import Component, RunConfig


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
                    finished = group.advance(requests, link, greedy, report)
                    if finished:
                        yield finished
                    if group.seats is not None or group.start(requests, link, greedy):
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
    """Environments that are stepped together; the policy is asked for those alone whose episode runs.

    Where the simulator restarts single environments, one whose episode has ended starts the next. Others
    start together, when the last episode has ended; until then, what ended goes on off the record.
    """

    def __init__(self, simulator: Simulator, asker: tuple[int, int]) -> None:
        self.simulator = simulator
        self.asker = asker
        self.seats: Seats | None = None
        simulator.auto_reset = not simulator.restarts
        self._shown: dict[str, NDArray[Any]] = {}
        self._held: list[Trajectory] = []  # ended before others that started with them

    def start(self, requests: _Requests, link: Link, greedy: bool) -> bool:
        """Begin one episode for each of the next requests; False if there is none."""
        self.seats = Seats(self.simulator.num_envs, self.simulator.max_episode_steps)
        observation = self._fill(self.seats, requests)
        if observation is None:
            self.seats = None
            return False
        self._ask(self.seats, observation, link, greedy)
        return True

    def advance(
        self, requests: _Requests, link: Link, greedy: bool, report: EnvironmentReport
    ) -> list[Trajectory]:
        """One decision of every environment whose episode runs; returns the episodes that may leave."""
        seats = cast("Seats", self.seats)
        answer = link.answer(self.asker)
        with span("run", samples=int(seats.running_N.sum()), name="simulate"):
            transition = self.simulator.step(self._commands(seats, answer.sample.actions.numpy()))
            ended = seats.add(self._shown, answer.sample, transition, answer.version)
        report.actions += sum(_executed(episode) for episode in ended)
        observation = transition.observation
        if ended and self.simulator.restarts:
            observation = self._fill(seats, requests) or observation
        self._held += ended
        if seats.running_N.any():
            self._ask(seats, observation, link, greedy)
        else:
            self.seats = None
        if self.seats is not None and not self.simulator.restarts:
            return []
        leaving, self._held = self._held, []
        return sorted(leaving, key=lambda episode: (episode.group, episode.replica))

    def _fill(self, seats: Seats, requests: _Requests) -> Observation | None:
        """Start episodes where none runs; None if there is no request."""
        free = np.flatnonzero(~seats.running_N).tolist()
        found = requests.take(len(free))
        if not found:
            return None
        starts = [request.initial_state for request in found]
        with span("run", samples=0, name="reset"):
            if self.simulator.restarts:
                observation = self.simulator.restart(dict(zip(free, starts, strict=False)))
            else:
                observation = self.simulator.reset(starts + starts[-1:] * (len(free) - len(starts)))
        for n, request in zip(free, found, strict=False):
            seats.seat(n, request)
        return observation

    def _ask(self, seats: Seats, observation: Observation, link: Link, greedy: bool) -> None:
        self._shown = observation_arrays(observation, np.flatnonzero(seats.running_N))
        link.ask(Question(self.asker, self._shown, seats.seeds(), greedy))

    def _commands(self, seats: Seats, actions: NDArray[Any]) -> NDArray[Any]:
        """What the simulator executes: continuous actions within its box, a chunk axis for discrete. Where no
        episode runs it is told zeros."""
        space = self.simulator.action_space
        told = actions[:, None] if space.n is not None else actions.clip(space.low, space.high)
        if len(told) == len(seats.running_N):
            return told
        commands = np.zeros((len(seats.running_N), *told.shape[1:]), dtype=told.dtype)
        commands[seats.running_N] = told
        return commands


def _executed(episode: Trajectory) -> int:
    return len(episode.actions) if episode.executed is None else int(episode.executed.sum())


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
