"""Processes that are lost while a run goes on, and what is started again alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from rlinf_core.errors import RlinfError, WorkerDied, WorkerError
from rlinf_core.run.crew import CYCLE
from rlinf_core.types import EpisodeRequest, Experience, Request, Sample

if TYPE_CHECKING:
    from rlinf_core.api import Engine, Host
    from rlinf_core.roles.weight_sync import WeightSync
    from rlinf_core.run.crew import Crew

_FIRST_S = 0.5  # before the second start; the first one is made at once
_LONGEST_S = 30.0
_TOLD_S = 2.0  # after an error that a lost process may be the cause of, until that is known
_LOOK_S = 0.01
RESTARTS, SET_ASIDE = "faults/restarts", "faults/set_aside"
ALONE = ("rollout", "reward")  # groups of a text task whose ranks need nobody to be started again with them


class Restarts:
    """How often processes may be started again, whether alone or with the run. The first start is made at
    once; while no step is completed, each further one after a longer wait."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._in_vain = 0  # since a step was completed

    @property
    def left(self) -> int:
        """Of all."""
        return self.limit - self.used

    def spend(self, death: WorkerDied) -> None:
        """One of them, after its wait. Raises the death where none is left."""
        if not self.limit:
            raise death
        if not self.left:
            times = "once" if self.limit == 1 else f"{self.limit} times"
            raise WorkerDied(
                f"{death}\nNothing is started again after {times} (engine.restarts={self.limit})",
                worker=death.worker,
                traceback=death.traceback,
            ) from death
        self.used += 1
        if self._in_vain:
            time.sleep(min(_LONGEST_S, _FIRST_S * 2.0 ** (self._in_vain - 1)))
        self._in_vain += 1

    def completed(self) -> None:
        """A step has come to its end."""
        self._in_vain = 0


class Healing:
    """Starts processes again that were lost, with their workers and the weights that those had: one alone of
    rollout and reward workers, and of environments and the policy that acts in them all workers. Where what
    is trained lives in them too, the run as a whole has to go back to its last checkpoint.

    `told` hears of each; any thread may call.
    """

    def __init__(self, crew: Crew, engine: Engine, restarts: Restarts, told: Callable[[str], None]) -> None:
        self.sync: WeightSync | None = None  # of the present flow
        self._crew = crew
        self._engine = engine
        self._restarts = restarts
        self._told = told
        self._lock = threading.RLock()
        self._renewed: dict[int, float] = {}
        self._mended = 0.0
        self._counts: dict[str, float] = {}
        crew.heal_by(self)

    def heal(self, host: Host, death: WorkerDied, since: float) -> None:
        """Start it again, with its workers, unless that was done after that moment. Raises the death where
        the run cannot go on."""
        with self._lock:
            if self._renewed.get(id(host), 0.0) > since:
                return
            while True:
                self._spend([host], ALONE, death)
                try:
                    self._renew([host])
                    for name, rank in self._crew.at(host):
                        self._crew.renew(name, [rank])
                        if name == "rollout":
                            self._give_weights([rank])
                    break
                except WorkerDied as again:
                    death = again
            self._renewed[id(host)] = time.monotonic()

    def mend(self) -> None:
        """Start again what was lost while nobody waited for it."""
        if self._crew.config.simulator is not None:
            lost = self._lost(0.0)
            if lost:
                self.mend_cycle(cast("WorkerDied", lost[0].death()), float("inf"))
            return
        for host in self._hosts(ALONE):
            death = host.death()
            if death is not None:
                self.heal(host, death, float("inf"))

    def mend_cycle(self, error: WorkerError, since: float) -> None:
        """Build environments and policies anew where one has lost its process, unless that was done after
        that moment. Raises the error where none has, and a death where the run cannot go on."""
        with self._lock:
            if self._mended > since:
                return
            while True:
                lost = self._lost(_TOLD_S)
                if not lost:
                    raise error
                death = cast("WorkerDied", lost[0].death())
                self._spend(self._hosts(CYCLE), CYCLE, death)
                try:
                    self._renew(lost)
                    self._crew.renew_cycle(lost)
                    self._give_weights(range(self._crew.groups["rollout"].size))
                    break
                except WorkerDied as again:
                    error = again
            self._mended = time.monotonic()

    def leave_out(self, request: EpisodeRequest, death: WorkerError) -> None:
        """Note that an episode has cost a process whenever it was played."""
        what = f"the episode of group {request.group}, replica {request.replica}"
        self._set_aside(f"{what} (initial state {request.initial_state})", death)

    def spare(self, item: Any, death: WorkerDied) -> Experience:
        """The row of a request, or of a response, that has cost its worker's process again and again: it has
        an error, and is not trained."""
        what = f"prompt {item.prompt.index} (group {item.group}, replica {item.replica})"
        self._set_aside(what, death)
        error = "set aside: it cost its worker's process again and again"
        if isinstance(item, Sample):
            return replace(item, error=error)
        return _empty(cast("Request", item), error)

    def counts(self) -> dict[str, float]:
        """Metrics of what was started again or set aside since this was asked last."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def _spend(self, hosts: Sequence[Host], names: Sequence[str], death: WorkerDied) -> None:
        """Raises the death where workers of other groups live in these processes too."""
        if any(name not in names for host in hosts for name, _ in self._crew.at(host)):
            raise death
        self._restarts.spend(death)
        self._count(RESTARTS)
        self._told(
            f"{death}\nIt is started again alone, and what it lost is made again "
            f"({self._restarts.left} restarts left)."
        )

    def _renew(self, hosts: Sequence[Host]) -> None:
        for host in hosts:
            if not self._engine.renew(host):
                raise RlinfError(f"process {host.name} cannot be started again alone")

    def _give_weights(self, ranks: Sequence[int]) -> None:
        if self.sync is not None:
            self.sync.join(ranks)

    def _hosts(self, names: Sequence[str]) -> list[Host]:
        groups = [self._crew.groups[name] for name in names if name in self._crew.groups]
        return list({id(host): host for group in groups for host, _ in group.members}.values())

    def _lost(self, patience_s: float) -> list[Host]:
        """Processes of environments and policies that are gone; of some the channels hear first."""
        end = time.monotonic() + patience_s
        while True:
            lost = [host for host in self._hosts(CYCLE) if host.death() is not None]
            if lost or time.monotonic() >= end:
                return lost
            time.sleep(_LOOK_S)

    def _set_aside(self, what: str, death: WorkerError) -> None:
        self._count(SET_ASIDE)
        self._told(f"{what} is set aside: it has cost {death.worker} its process again and again")

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0.0) + 1.0


def _empty(request: Request, error: str) -> Sample:
    """No response. It has one token, which is not trained, so that whoever looks at rows finds one."""
    return Sample(
        group=request.group,
        replica=request.replica,
        seed=request.seed,
        mask=np.zeros(1, dtype=bool),
        logprobs=np.zeros(1, dtype=np.float32),
        weight_version=-1,
        finish="abort",
        error=error,
        prompt=request.prompt,
        response_ids=request.prompt.token_ids[-1:].astype(np.int64),
    )
