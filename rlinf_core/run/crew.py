"""The worker groups of a run, built and moved as its plan says."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.cluster.devices import inventory
from rlinf_core.comm.routing import interval_sizes
from rlinf_core.config.lending import lent_to, piece_tokens, refuse_ordered, unit_groups
from rlinf_core.errors import WorkerDied
from rlinf_core.plugins import plugins
from rlinf_core.roles.ordering import GroupOrder, Units
from rlinf_core.roles.setup import algorithm_needs, policy_alone
from rlinf_core.roles.simulators import groups_beside
from rlinf_core.run.graph import LEARNERS, make_graph, most_groups
from rlinf_core.run.moving import Change
from rlinf_core.run.seats import TRAINED, Hosts, Seat, meeting_point
from rlinf_core.schedule.defaults import streams
from rlinf_core.worker import WorkerGroup

if TYPE_CHECKING:
    from rlinf_core.api import Engine, Host
    from rlinf_core.comm.remote import ChannelHandle
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.saving import Staged
    from rlinf_core.roles.setup import Spaces
    from rlinf_core.schedule.plan import Plan
    from rlinf_core.worker.healed import Healer

MOST_ENVS = 64  # environments at once where train.num_envs does not say
TARGETS = {
    "environment": "rlinf_core.roles.environment:EnvironmentWorker",
    "policy": "rlinf_core.roles.policy:PolicyWorker",
    "rollout": "rlinf_core.roles.rollout:RolloutWorker",
    "actor": "rlinf_core.roles.actor:ActorWorker",
    "policies": "rlinf_core.roles.policies:PoliciesWorker",
    "reference": "rlinf_core.roles.reference:ReferenceWorker",
    "critic": "rlinf_core.roles.critic:CriticWorker",
    "reward": "rlinf_core.roles.reward:RewardWorker",
}


CYCLE = ("environment", "rollout")  # of an embodied task: they talk at every action
DROP_S = 30.0  # that a worker may take to end what it does, and to close


class Crew:
    """Groups by name; they stay where they are while plans agree about them. Without `learns` there are only
    those that evaluate the policy, without `plays` only those that learn from rows; those of an embodied task
    are told the simulator's `spaces` then."""

    def __init__(
        self,
        config: RunConfig,
        engine: Engine,
        hosts: Hosts,
        *,
        learns: bool = True,
        plays: bool = True,
        spaces: Spaces | None = None,
    ) -> None:
        self.config = config
        needs = algorithm_needs(config)
        self.needs = needs if learns else policy_alone(needs)
        self.graph = make_graph(config)
        self.lent = lent_to(config, self.needs)
        self.engine = engine
        self.hosts = hosts
        self.groups: dict[str, WorkerGroup] = {}
        self._seats: dict[str, Seat] = {}
        self._plays = plays
        self._spaces = spaces  # of an embodied task
        self._resident: dict[str, bool] = {}
        self._channels = 0
        resizes = plugins().get(config.backend.kind, config.backend.name).provides.resize
        self.resizes = resizes and not config.policies
        self._talking: list[ChannelHandle] = []  # by which environments and policy talk
        self.healer: Healer | None = None

    def heal_by(self, healer: Healer) -> None:
        """Let it start processes of a text task again that are lost while they make or score rows."""
        self.healer = healer
        self._set_healers()

    def at(self, host: Host) -> list[tuple[str, int]]:
        """The groups with a rank in this process, and which rank."""
        return [
            (name, rank)
            for name, group in self.groups.items()
            for rank, (each, _) in enumerate(group.members)
            if each is host
        ]

    def renew(self, name: str, ranks: Sequence[int]) -> None:
        """Build workers again in processes that have lost them."""
        group = self.groups[name]
        group.renew(ranks)
        if not self._resident.get(name, True):
            for call in [group.call_rank(rank, "set_resident", False) for rank in ranks]:
                call.result()

    def renew_cycle(self, lost: Sequence[Host]) -> None:
        """Build environments and the policy that acts in them anew, of which some lost their process."""
        end = WorkerDied("a worker at the other end has lost its process")
        for channel in self._talking:
            with channel.connect("driver") as mine:
                mine.abandon(end)
        for name in reversed(CYCLE):
            for host, worker in self.groups[name].members:
                if all(host is not each for each in lost):
                    host.drop(worker).result(DROP_S)
        for name in CYCLE:
            self.renew(name, range(self.groups[name].size))
        self._connect(self._plan)

    def place(self, plan: Plan) -> None:
        """Build, move or keep every group; what trains keeps its state."""
        change = self.change(plan)
        change.prepare()
        change.carry_out()
        change.tidy()

    def change(self, plan: Plan) -> Change:
        """What is to be done until every group is where the plan says."""
        wanted = self._wanted(plan)
        return Change(self, plan, self._seats, wanted)

    def placed(self, plan: Plan, seats: Mapping[str, Seat], moved: Sequence[str]) -> None:
        """The groups are where the plan says, `moved` of them elsewhere than before: tell them of it."""
        self._plan = plan
        self._seats = dict(seats)
        if "environment" in moved:
            self._connect(plan)
        self._set_intakes(plan)
        for group in self.trained.values():
            group.call("limit_micro_batch", plan.assignments["actor"].micro_batch).wait()
        there = {name: part for name, part in plan.assignments.items() if name in self.groups}
        for name, part in there.items():
            before = None if name in moved else self._resident[name]
            if part.resident != before:
                self.groups[name].call("set_resident", part.resident).wait()
            self._resident[name] = part.resident
        self._set_healers()

    @property
    def trained(self) -> dict[str, WorkerGroup]:
        """The groups that learn; the policy first."""
        return {name: self.groups[name] for name in TRAINED if name in self.groups}

    def stage_save(self, *, background: bool) -> dict[str, list[Staged]]:
        """Let every rank of what learns take its state as it is now, by group."""
        calls = {
            name: group.call("stage_save", background=background) for name, group in self.trained.items()
        }
        return {name: call.wait() for name, call in calls.items()}

    def write_save(self, folder: Path, listing: str) -> list[Path]:
        """Let every rank write what it took, each group into a folder of its own; returns the files that come
        to be when all is durable, whose names begin with `listing`."""
        calls = []
        listings = []
        for name, group in self.trained.items():
            start = f"{folder / listing}{name}-"
            calls.append(group.call("write_save", str(folder / name), start))
            listings += [Path(f"{start}{rank}") for rank in range(group.size)]
        for call in calls:
            call.wait()
        return listings

    def check_save(self) -> None:
        """Raise what writing has failed by, if it has."""
        for call in [group.call("check_save") for group in self.trained.values()]:
            call.wait()

    def finish_save(self) -> None:
        """Wait until every rank has written what it took."""
        for call in [group.call("finish_save") for group in self.trained.values()]:
            call.wait()

    def load(self, folder: Path, algorithm_state: Mapping[str, Any]) -> None:
        """Restore what was written."""
        for name, group in self.trained.items():
            group.call("load", str(folder / name), algorithm_state).wait()

    def memory_bytes(self) -> dict[str, float]:
        """What each group holds on its fullest device, where that is known."""
        calls = {name: group.call("memory_bytes") for name, group in self.groups.items()}
        held = {name: max(call.wait()) for name, call in calls.items()}
        held["actor"] += held.pop("critic", 0.0)  # in the same place
        return {name: size for name, size in held.items() if size and name in self._resident}

    def _wanted(self, plan: Plan) -> dict[str, Seat]:
        """The seat of every group, in the order in which they are built."""
        at = {name: part.devices for name, part in plan.assignments.items()}
        seats: dict[str, Seat] = {}
        if self.config.simulator is None:
            seats["rollout"] = Seat(at["rollout"])
        else:
            cycle = (at["environment"], at["rollout"])
            ranks = len(at["environment"])
            apart = at["environment"] != at["rollout"]
            groups = plan.stages if apart else groups_beside(self.config, self._envs_of(ranks))
            seats |= {name: Seat(at[name], cycle, groups) for name in ("environment", "rollout")}
        seats["actor"] = Seat(at["actor"])
        if self.needs.reference:
            seats["reference"] = Seat(at["actor"])
        if self.needs.critic == "own":
            seats["critic"] = Seat(at["actor"])
        if self.config.simulator is None:
            seats["reward"] = Seat(())
        return {name: seat for name, seat in seats.items() if self._plays or name in LEARNERS}

    def recipe(self, name: str, seat: Seat) -> tuple[str, dict[str, Any]]:
        """What a rank is built from: `module:Class` and its arguments."""
        kwargs: dict[str, Any] = {"config": self.config}
        if name == "environment":
            kwargs |= {"num_envs": self._envs_of(len(seat.devices)), "groups": seat.groups}
        if name == "actor":
            kwargs |= {"keep_reference": self.needs.reference, "spaces": self._spaces}
        if name == "critic":
            kwargs["spaces"] = self._spaces
        acts = name == "rollout" and self.config.simulator is not None
        if acts:
            kwargs["spaces"] = self._spaces
        several = name == "actor" and bool(self.config.policies)
        return TARGETS["policy" if acts else "policies" if several else name], kwargs

    def device(self, number: int) -> str:
        """What the process of a device calls it."""
        return self.hosts.devices[number].device or _device(number)

    def build(self, name: str, seat: Seat) -> WorkerGroup:
        """A new group."""
        hosts = [self.hosts.devices[i] for i in seat.devices] or [self.hosts.others[name]]
        target, kwargs = self.recipe(name, seat)
        group = WorkerGroup.create(
            name,
            target,
            hosts,
            kwargs,
            [self.device(i) for i in seat.devices] or ["cpu"],
            self.config.seed,
            master=meeting_point(hosts[0]) if name == "actor" and len(hosts) > 1 else "",
        )
        if name == "environment":
            self._spaces = group.call("spaces").wait()[0]
        return group

    def _envs_of(self, ranks: int) -> int:
        """Environments of each of so many ranks."""
        train = self.config.train
        count = train.num_envs or min(MOST_ENVS, train.prompts_per_step * self.needs.group_size)
        return -(-count // ranks)

    def _connect(self, plan: Plan) -> None:
        """Environments and policy act in one process where they share devices; otherwise they talk."""
        environment, rollout = self.groups["environment"], self.groups["rollout"]
        if plan.assignments["environment"].devices == plan.assignments["rollout"].devices:
            calls = [
                environment.call_rank(rank, "connect_beside", rollout.members[rank][1])
                for rank in range(environment.size)
            ]
            for call in calls:
                call.result()
            self._talking = []
            return
        self._channels += 1
        questions = self.engine.channel(f"questions-{self._channels}")
        answers = self.engine.channel(f"answers-{self._channels}")
        self._talking = [questions, answers]
        for rank, count in enumerate(interval_sizes(environment.size * plan.stages, rollout.size)):
            rollout.call_rank(rank, "connect", questions, answers, count).result()
        environment.call("connect", questions, answers, rollout.size).wait()

    def _set_intakes(self, plan: Plan) -> None:
        rollout, actor = plan.assignments["rollout"], plan.assignments["actor"]
        chunk = rollout.chunk if streams(self.graph, rollout.devices, actor.devices) else 0
        order = GroupOrder(self.needs.group_size, most_groups(self.config, self.needs), chunk)
        for name in LEARNERS:
            if name in self.groups:
                self.groups[name].intake = order
        if self.lent != "nothing":
            refuse_ordered(self.config, self.groups["actor"].call("any_order").wait())
            shared = self.groups["actor" if self.lent == "training" else "reference"]
            groups = self.config.train.prompts_per_step
            tokens = piece_tokens(self.config, self.needs) if self.lent == "training" else 0
            shared.intake = Units(self.needs.group_size, groups, unit_groups(self.config, self.needs), tokens)

    def _set_healers(self) -> None:
        if self.config.simulator is None and self._plays:
            for name in ("rollout", "reward"):
                self.groups[name].healer = self.healer

    def saved(self, draft: Path) -> Mapping[str, Any]:
        """Write what trains into a folder; returns the algorithm's state."""
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        staged = self.stage_save(background=False)
        self.write_save(draft, ".part-")
        self.finish_save()
        return staged["actor"][0].algorithm


def _device(number: int) -> str:
    return f"cuda:{number}" if inventory().cuda_devices else "cpu"
