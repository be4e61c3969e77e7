"""The environment role: simulators whose episodes are chosen by a policy beside them or apart."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from rlinf_core.comm.routing import interval_of
from rlinf_core.comm.spans import span
from rlinf_core.pool.part import Lives
from rlinf_core.roles.env_group import EnvironmentReport, Group, Requests, Rollout
from rlinf_core.roles.policy import Apart, Beside, Link, PolicyWorker
from rlinf_core.roles.setup import Spaces
from rlinf_core.roles.simulators import build_simulators
from rlinf_core.types import EpisodeRequest, Trajectory
from rlinf_core.worker import Worker, WorkerContext, on_host, stage

if TYPE_CHECKING:
    from rlinf_core.comm.remote import ChannelHandle
    from rlinf_core.config.schema import RunConfig

__all__ = ["EnvironmentReport", "EnvironmentWorker"]
LOOK_S = 0.2  # how long one wait for worker processes may take, until their deadlines are looked at


class EnvironmentWorker(Worker):
    """One rank of `num_envs` environments in `groups` that take turns: while the policy looks at one,
    another is stepped. A group is one simulator, in this process or over worker processes."""

    def __init__(self, context: WorkerContext, config: RunConfig, *, num_envs: int, groups: int = 1) -> None:
        super().__init__(context)
        self.lives = Lives(config.env_pool.restarts)
        self._reported = 0  # lives that were used
        first = context.seed + context.rank * groups
        simulators = build_simulators(config, num_envs, groups, first, self.lives)
        shaping = config.train.reward_shaping
        self.groups = [Group(each, (context.rank, i), shaping) for i, each in enumerate(simulators)]
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
        rollout = Rollout(Requests(chunks), cast("Link", self.link), greedy, report)
        try:
            with self.beside(*self._beside):
                playing = deque(group for group in self.groups if group.start(rollout))
                while playing:
                    group = _next(playing)
                    playing.remove(group)
                    finished = group.turn(rollout)
                    if finished:
                        yield finished
                    if group.state != "done" or group.start(rollout):
                        playing.append(group)
        finally:
            for group in self.groups:
                rollout.link.goodbye(group.asker)
        report.seconds = time.perf_counter() - began
        report.restarts = self.lives.used - self._reported
        self._reported = self.lives.used
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


def _next(playing: Sequence[Group]) -> Group:
    """The first group that need not wait for its simulator; else the first that has asked the policy."""
    while True:
        ready = next((group for group in playing if group.ready()), None)
        asked = next((group for group in playing if group.state == "asked"), None)
        if ready or asked:
            return cast("Group", ready or asked)
        with span("run", samples=0, name="simulate"):
            _wait_for_any(playing)


def _wait_for_any(groups: Sequence[Group]) -> None:
    poller = select.poll()
    for group in groups:
        for number in group.simulator.waits_on():
            poller.register(number, select.POLLIN)
    poller.poll(LOOK_S * 1000)
