"""Environments that are stepped together, and the episodes that are asked of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from rlinf_core.comm.spans import span
from rlinf_core.roles.episodes import Seats, observation_arrays
from rlinf_core.roles.films import Films
from rlinf_core.roles.policy import Answer, Link, Question
from rlinf_core.roles.promises import expect_built, expect_observation, expect_shapes, expect_transition
from rlinf_core.types import EpisodeRequest, Trajectory

if TYPE_CHECKING:
    from rlinf_core.api import Observation, Simulator
    from rlinf_core.roles.shaping import RewardShaping

ATTEMPTS = 2  # at an episode whose simulator dies, before it is given up


@dataclass
class EnvironmentReport:
    """What one rank says of one rollout. `actions` were executed in episodes that were asked for."""

    seconds: float = 0.0
    actions: int = 0
    restarts: int = 0  # of processes of environments, since the report before
    lost: int = 0  # episodes that ended with their process, and were started again or given up
    dropped: int = 0  # episodes that were given up


class Requests:
    """Requests one after the other, whatever chunks they came in; lost ones come again."""

    def __init__(self, chunks: Iterator[list[EpisodeRequest]]) -> None:
        self._chunks = chunks
        self._waiting: deque[EpisodeRequest] = deque()
        self._attempts: Counter[tuple[int, int]] = Counter()

    def take(self, count: int) -> list[EpisodeRequest]:
        """The next ones; fewer than asked for only at the end."""
        while len(self._waiting) < count:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._waiting += chunk
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def again(self, request: EpisodeRequest) -> bool:
        """Its episode was lost: it is the next one, unless that has happened too often."""
        name = (request.group, request.replica)
        self._attempts[name] += 1
        if self._attempts[name] >= ATTEMPTS:
            return False
        self._waiting.appendleft(request)
        return True


@dataclass(frozen=True)
class Rollout:
    """What the groups of one rollout share."""

    requests: Requests
    link: Link
    greedy: bool
    report: EnvironmentReport


class Group:
    """Environments of one simulator; the policy is asked for those alone whose episode runs.

    Where the simulator restarts single environments, one whose episode has ended starts the next. Others
    start together, when the last episode has ended; until then, what ended goes on off the record.

    `state`: a question to the policy is open, the simulator steps, it starts episodes, its processes start,
    or there is no episode.
    """

    def __init__(self, simulator: Simulator, asker: tuple[int, int], shaping: RewardShaping = "none") -> None:
        expect_built(simulator)
        self.simulator = simulator
        self._shaping = shaping
        self.asker = asker
        self.state: Literal["asked", "stepping", "resetting", "starting", "done"] = "done"
        self._seats = self._empty()
        simulator.auto_reset = not simulator.restarts
        self._films = Films(simulator)
        self._shown: dict[str, NDArray[Any]] = {}
        self._answer: Answer | None = None
        self._held: list[Trajectory] = []  # ended before others that started with them

    def ready(self) -> bool:
        """Whether there is something to take from the simulator, or it can be started by now."""
        if self.state == "starting":
            absent_N = self.simulator.absent()
            return absent_N is None or (self.simulator.restarts and not absent_N.all())
        return self.state in ("stepping", "resetting") and self.simulator.ready()

    def start(self, rollout: Rollout) -> bool:
        """Begin one episode for each of the next requests; False if there is none."""
        self._seats = self._empty()
        self._begin(rollout)
        return self.state != "done"

    def turn(self, rollout: Rollout) -> list[Trajectory]:
        """Go on as far as that does not mean to wait for what another group could use; returns the episodes
        that may leave."""
        leaving: list[Trajectory] = []
        if self.state == "starting":
            self._begin(rollout)
        elif self.state == "resetting":
            self._begun(rollout)
            if not rollout.link.prompt:
                return leaving
        elif self.state == "stepping":
            leaving = self._take_in(rollout)
            if not rollout.link.prompt:
                return leaving
        if self.state == "asked":
            self._decide(rollout.link)
            if not self.simulator.concurrent:
                leaving += self._take_in(rollout)
        return leaving

    def _empty(self) -> Seats:
        return Seats(self.simulator.num_envs, self.simulator.max_episode_steps, self._shaping)

    def _begin(self, rollout: Rollout) -> None:
        if self._fill(rollout.requests) and not self.simulator.concurrent:
            self._begun(rollout)

    def _begun(self, rollout: Rollout) -> None:
        with span("run", samples=0, name="reset"):
            observation = self.simulator.begun()
        expect_observation(self.simulator, observation)
        self._ask(observation, rollout)

    def _fill(self, requests: Requests) -> bool:
        """Start episodes where none runs; False if there is no request, or no process yet."""
        free_N = ~self._seats.running_N
        absent_N = self.simulator.absent()
        self.state = "done"
        if absent_N is not None:
            free_N &= ~absent_N if self.simulator.restarts else False
            if not free_N.any():
                self.state = "starting"
                return False
        free = np.flatnonzero(free_N).tolist()
        found = requests.take(len(free))
        if not found:
            return False
        starts = [request.initial_state for request in found]
        if not self.simulator.restarts:
            starts += starts[-1:] * (len(free) - len(starts))
        with span("run", samples=0, name="reset"):
            self.simulator.begin(dict(zip(free, starts, strict=False)))
        self.state = "resetting"
        for n, request in zip(free, found, strict=False):
            self._seats.seat(n, request)
            self._films.begin(n, request)
        return True

    def _ask(self, observation: Observation, rollout: Rollout) -> None:
        self._shown = observation_arrays(observation, np.flatnonzero(self._seats.running_N))
        expect_shapes(self.simulator, self._shown)
        rollout.link.ask(Question(self.asker, self._shown, self._seats.seeds(), rollout.greedy))
        self.state = "asked"

    def _decide(self, link: Link) -> None:
        """Give the policy's answer to the simulator."""
        self._answer = link.answer(self.asker)
        self._films.send(self._commands(self._answer.sample.actions.numpy()))
        self.state = "stepping"

    def _take_in(self, rollout: Rollout) -> list[Trajectory]:
        """One decision of every environment whose episode runs."""
        seats, answer = self._seats, cast("Answer", self._answer)
        with span("run", samples=int(seats.running_N.sum()), name="simulate"):
            transition = self._films.receive()
            expect_transition(self.simulator, transition)
            ended = seats.add(self._shown, answer.sample, transition, answer.version)
        rollout.report.actions += sum(_executed(episode) for episode in ended)
        self._films.end(ended)
        self._held += ended
        if transition.lost_N is not None:
            self._lose(transition.lost_N, answer.version, rollout)
        restarts = self.simulator.restarts and not seats.running_N.all()
        if restarts and self._fill(rollout.requests):
            if not self.simulator.concurrent:
                self._begun(rollout)
        elif seats.running_N.any():
            self._ask(transition.observation, rollout)
        elif self.state != "starting":
            self.state = "done"
        if self.state != "done" and not self.simulator.restarts:
            return []
        leaving, self._held = self._held, []
        return sorted(leaving, key=lambda episode: (episode.group, episode.replica))

    def _lose(self, lost_N: NDArray[np.bool_], version: int, rollout: Rollout) -> None:
        """Episodes that ended with their process are played again, elsewhere perhaps, or given up."""
        for n in np.flatnonzero(lost_N & self._seats.running_N).tolist():
            rollout.report.lost += 1
            self._films.leave(n)
            if not rollout.requests.again(self._seats.leave(n)):
                rollout.report.dropped += 1
                self._held.append(self._seats.given_up(n, version))

    def _commands(self, actions: NDArray[Any]) -> NDArray[Any]:
        """What the simulator executes: continuous actions within its box, a chunk axis for discrete. Where no
        episode runs it is told zeros."""
        space, running_N = self.simulator.action_space, self._seats.running_N
        told = actions[:, None] if space.n is not None else actions.clip(space.low, space.high)
        if len(told) == len(running_N):
            return told
        commands = np.zeros((len(running_N), *told.shape[1:]), dtype=told.dtype)
        commands[running_N] = told
        return commands


def _executed(episode: Trajectory) -> int:
    return len(episode.actions) if episode.executed is None else int(episode.executed.sum())
