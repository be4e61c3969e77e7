"""Other numbers of ranks while a run goes on: as the settings plan them, or as somebody asks.

What takes time is done beside the steps, by a thread; between two steps state changes hands and the run goes
on. A change that cannot be made leaves the run as it was.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import ConfigError, RlinfError
from rlinf_core.roles.moving import Background
from rlinf_core.run.metrics import JsonLines
from rlinf_core.run.moving import Change, Moved
from rlinf_core.run.scale_desk import Request, ScaleDesk
from rlinf_core.schedule.scaled import refuse_fixed, scaled

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.run.compose import RunGraph
    from rlinf_core.run.planning import Planning
    from rlinf_core.schedule.plan import Plan

LEAD_S = 60.0  # that preparations for a planned change begin before it, as far as steps can be foreseen
ENDED = "the run has ended"
SCALED = "scale.jsonl"  # what was changed when, and what could not be


@dataclass(frozen=True)
class Wish:
    """So many ranks of these components: after a step, or as soon as possible for a request."""

    ranks: Mapping[str, int]
    step: int = 0
    request: Request | None = None

    @property
    def reason(self) -> str:
        """Who wants it."""
        return "planned" if self.request is None else "asked"


@dataclass
class Pending:
    """A change that is being prepared."""

    wish: Wish
    plan: Plan
    change: Change
    preparing: Background
    began: float = field(default_factory=time.monotonic)

    def prepared(self) -> bool:
        """Whether it can be carried out. Raises what preparing has failed by."""
        return self.preparing.done()


class Scaling:
    """All changes of a run's numbers of ranks, one after the other."""

    def __init__(
        self,
        config: RunConfig,
        planning: Planning,
        graph: RunGraph,
        told: Callable[[str], None],
        resumed_step: int | None = None,
    ) -> None:
        self._config = config
        self._planning = planning
        self._graph = graph
        self._told = told
        self._desk = ScaleDesk(Path(config.output))
        self._log = JsonLines(Path(config.output) / SCALED, resumed_step)
        self._planned = planned_wishes(config)
        self._asked: list[Wish] = []
        self._pending: Pending | None = None
        self._tidying: Background | None = None
        self._metrics: dict[str, float] = {}
        self._step_s = 0.0  # of the last step; 0 = there was none

    def due(self, step: int, step_s: float | None = None) -> Pending | None:
        """What is to be carried out now, after so many steps of which the last took `step_s`. Begins to
        prepare what comes next."""
        self._step_s = self._step_s if step_s is None else step_s
        self._asked += [Wish(request.ranks, request=request) for request in self._desk.new()]
        self._planned = [wish for wish in self._planned if wish.step >= step]
        while self._pending is None and (wish := self._next(step)) is not None:
            self._begin(step, wish)
        pending = self._pending
        if pending is None or pending.wish.step > step:
            return None
        return pending if self._is_ready(step, pending) else None

    def carry_out(self, step: int, pending: Pending, began: float) -> None:
        """The run has stopped for it at `began`, of the monotonic clock."""
        self._pending = None
        before = self._counts(self._graph.plan)
        try:
            found = self._graph.go(pending.change)
        except BaseException as err:
            if pending.wish.request is not None:
                self._desk.answer(pending.wish.request, state="refused", error=f"the run fails: {err}")
            raise
        pause_s = time.monotonic() - began
        self._tidying = Background(lambda: self._tidy(pending.change))
        self._tell(step, pending, before, found, pause_s)

    def metrics(self) -> dict[str, float]:
        """Of what was carried out since this was asked last."""
        found, self._metrics = self._metrics, {}
        return found

    def close(self) -> None:
        """The run ends: nothing changes any more."""
        self._desk.close(ENDED)
        self._pending = self._tidying = None

    def _next(self, step: int) -> Wish | None:
        """What to prepare now; planned changes come at their step, and so before others."""
        if not self._is_tidy():
            return None
        ahead = max(1, math.ceil(LEAD_S / self._step_s)) if self._step_s else math.inf
        if self._planned and self._planned[0].step - step <= ahead:
            return self._planned.pop(0)
        return self._asked.pop(0) if self._asked else None

    def _is_tidy(self) -> bool:
        """Whether the change before has been cleared away."""
        try:
            if self._tidying is not None and not self._tidying.done():
                return False
        except Exception as err:  # a border: what has left, or was not wanted, is of no use to the run
            self._told(f"after a change of ranks: {err}")
        self._tidying = None
        return True

    def _begin(self, step: int, wish: Wish) -> None:
        try:
            plan = self._wanted(wish)
        except RlinfError as err:
            self._refuse(step, wish, str(err))
            return
        change = self._graph.crew.change(plan)
        if not change.moved and wish.request is None:  # a run that was resumed has it from its beginning
            return
        if not change.moved:
            self._refuse(step, wish, f"there are {_words(wish.ranks)} already", done=True)
            return
        if wish.request is not None:
            self._desk.progress(wish.request, "preparing")
        self._pending = Pending(wish, plan, change, Background(change.prepare))

    def _wanted(self, wish: Wish) -> Plan:
        crew = self._graph.crew
        plan = scaled(self._graph.plan, self._planning.graph, self._planning.cluster, wish.ranks)
        if not crew.resizes:
            several = "an actor of several policies"
            what = several if self._config.policies else f"backend {self._config.backend.name!r}"
            refuse_fixed(plan, self._graph.plan, self._planning.graph, what)
        return plan

    def _is_ready(self, step: int, pending: Pending) -> bool:
        request = pending.wish.request
        try:
            if request is None:
                pending.preparing.wait()
            if pending.prepared():
                return True
        except Exception as err:  # a border: the run can do without the change
            self._give_up(step, pending, str(err))
            return False
        if request is not None and request.late:
            self._give_up(step, pending, "it was not prepared in time")
        return False

    def _give_up(self, step: int, pending: Pending, why: str) -> None:
        self._pending = None
        self._tidying = Background(lambda: self._abandon(pending))
        self._refuse(step, pending.wish, why)

    def _refuse(self, step: int, wish: Wish, why: str, *, done: bool = False) -> None:
        """Nothing changes; where all is as wished already (`done`), that is no failure."""
        ranks = dict(wish.ranks)
        if wish.request is not None:
            facts = {"state": "done", "pause_s": 0.0} if done else {"state": "refused"}
            self._desk.answer(wish.request, **facts, error=why, ranks=ranks)
        self._log.write({"step": step, "reason": wish.reason, "ok": done, "wanted": ranks, "error": why})
        self._told(f"step {step}: {_words(ranks)}: {why}")

    def _tell(
        self, step: int, pending: Pending, before: Mapping[str, int], found: list[Moved], pause_s: float
    ) -> None:
        after = self._counts(self._graph.plan)
        ranks = {name: [before[name], count] for name, count in after.items() if count != before[name]}
        moved = sum(each.moved_bytes for each in found)
        facts: dict[str, Any] = {
            "ranks": ranks,
            "pause_s": round(pause_s, 4),
            "prepare_s": round(time.monotonic() - pending.began - pause_s, 3),
            "moved_bytes": moved,
            "parts": {each.group: {k: round(v, 4) for k, v in each.times.items()} for each in found},
        }
        self._metrics = {"scale/pause_s": pause_s, "scale/moved_bytes": float(moved)}
        wish = pending.wish
        self._log.write({"step": step, "reason": wish.reason, "ok": True, **facts})
        if wish.request is not None:
            self._desk.answer(wish.request, state="done", step=step, **facts)
        told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in ranks.items())
        self._told(
            f"step {step}: {told} ranks ({wish.reason}): {pause_s:.2f} s, {moved / 2**20:.1f} MB moved"
        )

    def _tidy(self, change: Change) -> None:
        change.tidy()
        self._keep_used()

    def _abandon(self, pending: Pending) -> None:
        pending.preparing.join()
        pending.change.abandon()
        self._keep_used()  # one of those that were started may have died

    def _keep_used(self) -> None:
        parts = self._graph.plan.assignments.values()
        self._graph.crew.hosts.keep({device for part in parts for device in part.devices})

    @staticmethod
    def _counts(plan: Plan) -> dict[str, int]:
        return {name: len(part.devices) for name, part in plan.assignments.items()}


def planned_wishes(config: RunConfig) -> list[Wish]:
    """As the settings have them, in the order of their steps."""
    wishes = [
        Wish({name: count for name, count in each.items() if name != "step"}, each["step"])
        for each in config.schedule.scale
    ]
    return sorted(wishes, key=lambda wish: wish.step)


def refuse_impossible(config: RunConfig, planning: Planning) -> None:
    """Raises `ConfigError` for a planned change that the first plan, and those before it, do not allow."""
    plan = planning.first
    for wish in planned_wishes(config):
        try:
            plan = scaled(plan, planning.graph, planning.cluster, wish.ranks)
        except ConfigError as err:
            raise ConfigError(f"schedule.scale: at step {wish.step}: {err}") from err


def with_scale_of(planning: Planning, output: Path, step: int) -> Planning:
    """The planning of a run that goes on after so many steps: with the numbers of ranks that it had then, if
    it begins with those that it began with before, and by no other plans than that."""
    path = output / SCALED
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = [each for each in records if each["step"] <= step and "ranks" in each]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for each in done:
        for name, (before, after) in each["ranks"].items():
            first.setdefault(name, before)
            last[name] = after
    parts = planning.first.assignments
    if not last or any(name not in parts or len(parts[name].devices) != first[name] for name in last):
        return planning
    try:
        plan = scaled(planning.first, planning.graph, planning.cluster, last)
    except ConfigError:  # there are fewer devices now
        return planning
    return replace(planning, first=plan, trials=(), profile=None, replay=())


def _words(ranks: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={count}" for name, count in ranks.items())
