"""Keeps a run on the plan that suits it: measures every step, asks the pilot, moves the workers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlinf_core.comm.packing import pack
from rlinf_core.policies import of_all
from rlinf_core.run.candidates import PROFILE
from rlinf_core.run.metrics import JsonLines
from rlinf_core.run.observe import measurements
from rlinf_core.run.output import PLAN, writing
from rlinf_core.run.planning import HISTORY, Move, Planning, run_fingerprint
from rlinf_core.schedule.pilot import Observed, Pilot
from rlinf_core.schedule.plan_yaml import plan_to_yaml
from rlinf_core.schedule.profile import Profile
from rlinf_core.schedule.profile_yaml import write_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlinf_core.api.spans import HostSpan
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.flows.flow import StepResult
    from rlinf_core.run.compose import RunGraph
    from rlinf_core.schedule.graph import Graph
    from rlinf_core.schedule.plan import Plan

ROWS_WEIGHED = 8
UPDATES = ("publish", "receive")  # the stages that bring weights from the actor to others


class Steering:
    """Decides with the pilot, unless the plan is fixed; writes down what it decides.

    A resumed run goes through the changes that its first part went through, so that its numbers are the
    same; the pilot decides again after the last of them.
    """

    def __init__(self, config: RunConfig, planning: Planning, graph: RunGraph) -> None:
        self.config = config
        self.planning = planning
        self.graph = graph
        self.output = Path(config.output)
        self._replay = {move.step: move.plan for move in planning.replay}
        self._switch_s = 0.0
        self._write_plan(graph.plan)
        self._pilot: Pilot | None = None
        if planning.trials or planning.profile is not None:
            self._pilot = Pilot(
                graph.plan,
                planning.trials,
                planning,
                steps_each=config.schedule.profile_steps,
                replan=config.schedule.dynamic != "off",
                profile=planning.profile or Profile(fingerprint=run_fingerprint(config, planning.hardware)),
            )

    @property
    def settled(self) -> bool:
        """Whether no other plan is being tried."""
        return self._pilot is None or self._pilot.settled

    def notes(self) -> Iterator[str]:
        """What a person should be told since the last time this was asked."""
        while self._pilot is not None and self._pilot.notes:
            yield self._pilot.notes.pop(0)

    @property
    def plan(self) -> Plan:
        """The present plan, with what is expected of it once that is known."""
        return self.graph.plan if self._pilot is None else self._pilot.plan

    @property
    def predicted(self) -> dict[str, float]:
        """Metrics of what is expected of a step."""
        expected = self.plan.prediction
        return {} if expected is None else {"time/predicted": expected.step_s}

    def after(
        self, step: int, result: StepResult, window: tuple[float, float], spans: Sequence[HostSpan]
    ) -> Plan | None:
        """Take in the step that ended within a window of the monotonic clock, the `step`th; the plan to
        `move` to, if any."""
        if self._replay:
            repeated = self._replay.pop(step, None)
            if repeated is not None and self._pilot is not None:
                self._pilot.take_over(repeated)
            return repeated
        if self._pilot is None or not any(row.length for row in result.rows):
            return None
        return self._decide(self._pilot, step, self._observed(result, window, spans))

    def move(self, step: int, plan: Plan) -> None:
        """Go on by another plan, which is written down first."""
        began = time.monotonic()
        self._record(Move(step, plan))
        self.graph.apply(plan)
        self._switch_s = time.monotonic() - began

    def fix(self, step: int) -> None:
        """Stay with the plan that the run has now, which somebody has chosen after so many steps."""
        self._pilot = None
        self._replay.clear()
        self._record(Move(step, self.graph.plan))

    def _decide(self, pilot: Pilot, step: int, observed: Observed) -> Plan | None:
        was_settled = pilot.settled
        plan = pilot.after(observed, self.config.train.steps - step)
        if pilot.settled and not was_settled:
            self._write_plan(pilot.plan)
            with writing(self.output / PROFILE):
                write_profile(pilot.profile, self.output / PROFILE)
        return plan

    def _observed(
        self, result: StepResult, window: tuple[float, float], spans: Sequence[HostSpan]
    ) -> Observed:
        began, ended = window
        sync_s = result.metrics.get("time/sync", 0.0)
        device_type = self.planning.cluster.types[0]
        plan, graph = self.graph.plan, self.planning.graph
        return Observed(
            step_s=ended - began,
            work=float(sum(row.length for row in of_all(result.rows))),
            measurements=measurements(
                _played(spans) if graph.ahead else spans,
                plan,
                graph,
                -math.inf if graph.ahead else began + sync_s,
                ended,
                device_type,
            ),
            sync_s=sync_s,
            switch_s=self._switch_s,
            memory_bytes={} if self.settled else self.graph.crew.memory_bytes(),
            sample_bytes={} if self.settled else _sample_bytes(result, graph),
        )

    def _record(self, move: Move) -> None:
        self._write_plan(move.plan)
        JsonLines(self.output / HISTORY).write({"step": move.step, "plan": plan_to_yaml(move.plan)})

    def _write_plan(self, plan: Plan) -> None:
        path = self.output / PLAN
        with writing(path):
            path.write_text(plan_to_yaml(plan))


def _played(spans: Sequence[HostSpan]) -> list[HostSpan]:
    """Without those of weights on their way, which some receive while others are at work."""
    return [one for one in spans if one.span.name not in UPDATES]


def _sample_bytes(result: StepResult, graph: Graph) -> dict[str, float]:
    """What a row takes on its way to training; every component before passes on about as much."""
    some = result.rows[:ROWS_WEIGHED]
    size = pack(some).size / max(1, len(some))
    return {edge.source: size for edge in graph.edges}
