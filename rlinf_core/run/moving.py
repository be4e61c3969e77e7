"""A change of places while a run goes on: prepared beside it, carried out between two steps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.api.engine import Call, WorkerSpec
from rlinf_core.comm.handover import Laid
from rlinf_core.config.lending import refuse_ordered
from rlinf_core.errors import WorkerError
from rlinf_core.roles.moving import Given, Place, Told
from rlinf_core.run.seats import TRAINED, Seat, meeting_point
from rlinf_core.schedule.elastic import Moves, plan_moves
from rlinf_core.worker import GroupCall, WorkerContext
from rlinf_core.worker.failures import is_consequence

if TYPE_CHECKING:
    from rlinf_core.api import Block, Host
    from rlinf_core.comm.reading import Mark
    from rlinf_core.comm.transport import Standpoint
    from rlinf_core.run.crew import Crew
    from rlinf_core.schedule.plan import Plan
    from rlinf_core.worker import WorkerGroup

STAYING = ("rollout", "reference")  # groups whose ranks know nothing of one another
_LOOK_S = 0.02
Member = tuple["Host", str]


@dataclass
class Moved:
    """What one group's change came to."""

    group: str
    before: int  # ranks
    after: int
    moved_bytes: int = 0
    times: dict[str, float] = field(default_factory=dict)  # seconds of its parts


class Regrouped:
    """A group some of whose ranks stay where they are; others are built before the change, or leave after
    it."""

    def __init__(self, crew: Crew, name: str, before: Seat, after: Seat) -> None:
        self.crew = crew
        self.name = name
        self.group: WorkerGroup = crew.groups[name]
        self.before = before.devices
        self.after = after.devices
        self.seat = after
        self._creating: list[tuple[int, Call]] = []  # rank
        self._specs: dict[int, WorkerSpec] = {}

    @property
    def size(self) -> int:
        """Ranks afterwards."""
        return len(self.after)

    @property
    def sitting(self) -> dict[int, Member]:
        """Who has which device, until others take over."""
        return dict(zip(self.before, self.group.members, strict=True))

    def prepare(self) -> None:
        """Build the ranks that are new."""
        self.create({})
        self.await_created()

    def create(self, extra: Mapping[str, Any]) -> None:
        """Begin to; `extra` is told to new ranks alone."""
        target, kwargs = self.crew.recipe(self.name, self.seat)
        sitting = self.sitting
        for rank, device in enumerate(self.after):
            name = sitting[device][1] if device in sitting else f"{self.name}[{rank}]"
            context = WorkerContext(name, rank, self.size, self.crew.device(device), self.crew.config.seed)
            self._specs[rank] = WorkerSpec(context.name, target, {**kwargs, "context": context})
            if device not in sitting:
                told = replace(self._specs[rank], kwargs={**kwargs, **extra, "context": context})
                self._creating.append((rank, self.host(device).create(told)))

    def await_created(self) -> None:
        """Raises what building one has failed by."""
        names = [self._specs[rank].name for rank, _ in self._creating]
        GroupCall(names, "__init__", [call for _, call in self._creating]).wait()

    def carry_out(self) -> Moved:
        """From now on the group has the new ranks; those that stay learn how many there are."""
        kept = [rank for rank, device in enumerate(self.after) if device in self.before]
        members = self.members()
        calls = [members[rank][0].call(members[rank][1], "renumber", rank, self.size) for rank in kept]
        GroupCall([members[rank][1] for rank in kept], "renumber", calls).wait()
        return self.take_over()

    def take_over(self) -> Moved:
        """The group object has these members."""
        before, self._left = self.group.size, self.leaving()
        self.group.put(self.members(), [self._specs[rank] for rank in range(self.size)])
        return Moved(self.name, before, self.size)

    def tidy(self) -> None:
        """Drop those that have left."""
        for call in [host.drop(worker) for host, worker in self._left]:
            call.result()

    def abandon(self) -> None:
        """Nothing will change: drop what was built."""
        for rank, call in self._creating:
            call.wait(60.0)
            if call.done():
                self.host(self.after[rank]).drop(self._specs[rank].name)

    def host(self, device: int) -> Host:
        """The process of a device."""
        return self.crew.hosts.devices[device]

    def members(self) -> list[Member]:
        """In rank order, those that stay under the names that they have."""
        sitting = self.sitting
        hosts = [sitting[device][0] if device in sitting else self.host(device) for device in self.after]
        return [(host, self._specs[rank].name) for rank, host in enumerate(hosts)]

    def leaving(self) -> list[Member]:
        """Those whose devices others have afterwards."""
        return [member for device, member in self.sitting.items() if device not in self.after]


class TrainedMove(Regrouped):
    """A group that trains: its state goes from the memory of its ranks to that of the new ones."""

    def prepare(self) -> None:
        """Everything that needs no pause: new ranks, room for what moves, and what moves."""
        told: list[Told] = self.group.call("tell").wait()
        self._standpoints: dict[int, Standpoint] = dict(
            zip(self.before, (each.standpoint for each in told), strict=True)
        )
        self.create({"joins": told[0].facts})
        wanted = dict(self._prepared())
        self.await_created()
        for rank, device in enumerate(self.after):
            if device not in self.before:
                worker = self._specs[rank].name
                blocks, standpoint = self.host(device).call(worker, "wanted").result()
                wanted[device] = blocks
                self._standpoints[device] = standpoint
        if self.crew.lent != "nothing":
            whole = [each.sizes == each.shape for blocks in wanted.values() for each in blocks]
            refuse_ordered(self.crew.config, whole)
        have = dict(zip(self.before, (each.blocks for each in told), strict=True))
        self.moves: Moves = plan_moves(have, wanted)
        readers = self._readers(dict(zip(self.before, (each.mark for each in told), strict=True)))
        for device, (host, worker) in self.sitting.items():
            host.call(worker, "make_room", self.moves.given_by(device), readers[device]).result()
        while not all(host.call(worker, "ready_to_move").result() for host, worker in self._everybody()):
            time.sleep(_LOOK_S)

    def carry_out(self) -> Moved:
        """Everybody gives, meets the others, and takes."""
        began = time.monotonic()
        master = meeting_point(self.host(self.after[0])) if self.size > 1 else ""
        members = self.members()
        giving = [
            host.call(worker, "give", self._far_from(device))
            for device, (host, worker) in self.sitting.items()
        ]
        entering = [
            host.call(worker, "enter", Place(rank, self.size), master)
            for rank, (host, worker) in enumerate(members)
        ]
        old_names = [worker for _, worker in self.group.members]
        given: list[Given] = GroupCall(old_names, "give", giving).wait()
        gave = time.monotonic()
        names = [worker for _, worker in members]
        taking = [
            host.call(worker, "take", *self._for(rank, given)) for rank, (host, worker) in enumerate(members)
        ]
        GroupCall(names, "enter", entering).wait()
        entered = time.monotonic()
        try:
            GroupCall(names, "take", taking).wait()
        except WorkerError as err:
            if is_consequence(err):
                self._ask_leaving()
            raise
        taken = time.monotonic()
        found = self.take_over()
        found.moved_bytes = self.moves.moved_bytes
        found.times = {"give": gave - began, "enter": entered - gave, "take": taken - entered}
        return found

    def tidy(self) -> None:
        """What was before may go."""
        for call in [host.call(worker, "has_moved") for host, worker in self.group.members]:
            call.result()
        super().tidy()

    def abandon(self) -> None:
        """Those that would have stayed forget about it."""
        for host, worker in self.group.members:
            host.call(worker, "stay")
        super().abandon()

    def _prepared(self) -> Iterator[tuple[int, tuple[Block, ...]]]:
        """What those that stay will have."""
        calls, sitting = [], self.sitting
        for rank, device in enumerate(self.after):
            if device in sitting:
                host, worker = sitting[device]
                calls.append((device, host.call(worker, "prepare_to_move", Place(rank, self.size))))
        for device, call in calls:
            yield device, call.result()

    def _readers(self, marks: Mapping[int, Mark]) -> dict[int, set[int]]:
        """Who can read each one's memory."""
        calls = [host.call(worker, "reads", marks) for host, worker in self.members()]
        read = {device: call.result() for device, call in zip(self.after, calls, strict=True)}
        return {source: {device for device in read if source in read[device]} for source in marks}

    def _ask_leaving(self) -> None:
        """Raises what has ended one of those that leave: nobody waits for them."""
        for host, worker in self.leaving():
            host.call(worker, "reads", {}).result()

    def _everybody(self) -> list[Member]:
        return [*self.members(), *self.leaving()]

    def _far_from(self, device: int) -> list[int]:
        machine = self._standpoints[device].machine
        return [other for other in self.after if self._standpoints[other].machine != machine]

    def _for(self, rank: int, given: Sequence[Given]) -> tuple[Any, Mapping[int, Laid], Given]:
        """What `take` of a new rank is told."""
        device = self.after[rank]
        moves = self.moves.taken_by(device)
        sources = {each.source for each in moves if each.source != device}
        laid = {source: given[self.before.index(source)].laid.to(device) for source in sorted(sources)}
        former = rank < len(self.before) and self.before[rank] != device
        own = given[rank] if former else replace(given[0], generators={})
        return moves, laid, replace(own, laid=Laid(None))


class Change:
    """Everything that is to be done until groups are where a plan says. `prepare` may run in a thread of its
    own while steps are made; the rest, in this order, between two of them."""

    def __init__(
        self, crew: Crew, plan: Plan, before: Mapping[str, Seat], wanted: Mapping[str, Seat]
    ) -> None:
        self.crew = crew
        self.plan = plan
        self._wanted = wanted
        self.moved = [name for name in wanted if before.get(name) != wanted[name]]
        self._through_files = "actor" in self.moved and "actor" in crew.groups and not crew.resizes
        self._regrouped: list[Regrouped] = []
        self._built: list[str] = []  # dropped and built anew
        for name in self.moved:
            stays = name in STAYING or (name in TRAINED and not self._through_files)
            if name in crew.groups and stays:
                kind = TrainedMove if name in TRAINED else Regrouped
                self._regrouped.append(kind(crew, name, before[name], wanted[name]))
            else:
                self._built.append(name)

    def prepare(self) -> None:
        """Processes and workers that are new."""
        self.crew.hosts.start({device for seat in self._wanted.values() for device in seat.devices})
        for each in self._regrouped:
            each.prepare()

    def carry_out(self) -> list[Moved]:
        """Everything is somewhere else afterwards."""
        crew = self.crew
        draft = Path(crew.config.output).absolute() / ".draft-move"
        kept = crew.saved(draft) if self._through_files else None
        for name in reversed(self._built):
            if name in crew.groups:
                crew.groups.pop(name).drop().wait()
        found = [each.carry_out() for each in self._regrouped]
        for name in self._built:
            crew.groups[name] = crew.build(name, self._wanted[name])
        if kept is not None:
            crew.load(draft, kept)
            shutil.rmtree(draft)
        crew.placed(self.plan, self._wanted, self.moved)
        return found

    def tidy(self) -> None:
        """Wait until what leaves is gone."""
        for each in self._regrouped:
            each.tidy()

    def abandon(self) -> None:
        """Nothing changes after all."""
        for each in self._regrouped:
            each.abandon()
