"""Steps whose rows are made while earlier ones are trained on, by weights that are some steps old.

The rows of step `s` are made by the weights that step `max(first, s - lag)` begins with, whatever takes how
long: the lag is fixed, so that a run follows from its seed.
"""

from __future__ import annotations

import bisect
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from rlinf_core.flows.flow import Played, StepResult
from rlinf_core.run.pending import read_rows, write_rows
from rlinf_core.types import Experience, Prompt, Sample

if TYPE_CHECKING:
    from rlinf_core.flows.flow import Flow, Requests
    from rlinf_core.flows.parts import Parts
    from rlinf_core.flows.reasoning import ReasoningFlow
    from rlinf_core.roles.weight_sync import Weights

Made = TypeVar("Made")
PENDING = "pending.bin"  # in a checkpoint: rows that wait to be trained on


class Lane:
    """A thread that does one thing after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="ahead", daemon=True).start()

    def do(self, function: Callable[[], Made]) -> Future[Made]:
        """What the function returns or raises, once it has been called."""
        made: Future[Made] = Future()

        def run() -> None:
            try:
                made.set_result(function())
            except BaseException as error:  # the border of a thread: whoever waits raises it
                made.set_exception(error)

        self._jobs.put(run)
        return made

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class RunAhead:
    """Makes rows for at most `lag` steps more than the one that is trained.

    Where the flow is `apart`, a thread plays them while training goes on, and waits for nothing but the rows
    before them: the actor's weights are taken before each step of training, and given when it is their turn.
    Otherwise all happens in turn. Either way the rows are the same. With a lag of 0 the flow makes its own
    steps. With `parts`, the responses of a text task are made in parts by the weights of several steps.
    """

    def __init__(
        self, lag: int, steps: int, requests: Callable[[int], Requests], parts: Parts | None = None
    ) -> None:
        self.lag = lag
        self._steps = steps
        self._requests = requests
        self._parts = parts
        self._made: dict[int, Future[Played]] = {}  # by step
        self._playing: list[Future[None]] = []
        self._began: dict[int, int] = {}  # step -> the version that its training began with
        self._lane: Lane | None = None

    def step(self, flow: Flow, step: int) -> StepResult:
        """Ask for rows, and train on those of this step."""
        if not self.lag:
            return flow.step(self._requests(step), step)
        began = time.perf_counter()
        self._ask(flow, step)
        asked = time.perf_counter()
        played = self._made.pop(step).result()
        oldest = min(self._began.values())
        ages = staleness(played.kept, step, self._began)
        result = flow.train(played, step, oldest)
        result.metrics |= {**ages, "time/sync": asked - began, **flow.sync.metrics}
        if step + 1 in self._made:
            self._made[step + 1].result()
        return result

    def settle(self) -> None:
        """Wait until nothing is being made. Raises what has gone wrong."""
        while self._playing:
            self._playing.pop(0).result()

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        """Beside the rows that were made, what a resumed run needs."""
        return {"lag": self.lag, "parts": self._parts is not None, "began": self._began}

    def write(self, folder: Path) -> None:
        """Put what was made and is not trained yet into the folder of a checkpoint. Raises `OSError`."""
        if self.lag:
            whole = {step: made.result() for step, made in self._made.items() if made.done()}
            write_rows(folder / PENDING, whole, self._parts.open if self._parts else None)

    def load(self, folder: Path, state: Mapping[str, Any], prompt: Callable[[int], Prompt]) -> None:
        """Go on with what a checkpoint has, unless it was made for another lag. Raises `CheckpointError`."""
        mine = self.state_dict()
        if not self.lag or any(state[name] != mine[name] for name in ("lag", "parts")):
            return
        self._began = {int(step): version for step, version in state["began"].items()}
        made, opened = read_rows(folder / PENDING, prompt)
        self._made = {step: _done(played) for step, played in made.items()}
        if self._parts is not None:
            self._parts.open = opened
            self._made |= {step: Future() for step in opened}

    def _ask(self, flow: Flow, step: int) -> None:
        last = min(step + self.lag, self._steps - 1)
        wanted = [number for number in range(step, last + 1) if number not in self._made]
        open_ones = self._parts is not None and not all(made.done() for made in self._made.values())
        if not wanted and not open_ones:
            self._note(step, flow.sync.newest())
            return
        self._made |= {number: Future() for number in wanted}
        play = partial(self._play, flow, step, wanted, dict(self._made))
        if flow.apart:
            self._lane = self._lane or Lane()
            weights = flow.sync.take()
            self._note(step, weights.version)
            self._playing = [each for each in self._playing if not each.done() or each.exception()]
            self._playing.append(self._lane.do(partial(play, weights)))
        else:
            flow.sync()
            self._note(step, flow.sync.version)
            play()

    def _play(
        self,
        flow: Flow,
        step: int,
        wanted: Sequence[int],
        waiting: Mapping[int, Future[Played]],
        weights: Weights | None = None,
    ) -> None:
        """By these weights, if they are not there yet: the rows of steps, or a part of all that are open."""
        try:
            if weights is not None:
                flow.sync.give(weights)
            for number, played in self._rows(flow, step, wanted):
                waiting[number].set_result(played)
        except BaseException as error:  # whoever waits for these rows raises it
            for made in waiting.values():
                if not made.done():
                    made.set_exception(error)
            raise

    def _rows(self, flow: Flow, step: int, wanted: Sequence[int]) -> Iterator[tuple[int, Played]]:
        if self._parts is None:
            for number in wanted:
                yield number, flow.play(self._requests(number))
            return
        for number in wanted:
            self._parts.begin(number, self._requests(number).first())
        yield from self._parts.go_on(cast("ReasoningFlow", flow), step).items()

    def _note(self, step: int, version: int) -> None:
        self._began[step] = version
        self._began = {number: each for number, each in self._began.items() if number >= step - self.lag}


def _done(made: Made) -> Future[Made]:
    future: Future[Made] = Future()
    future.set_result(made)
    return future


def staleness(rows: Sequence[Experience], step: int, began: Mapping[int, int]) -> dict[str, float]:
    """How many steps ago training began with the weights that made the decisions of these rows. `began` has
    the version that each of the last steps began with; of steps that changed nothing the last one counts."""
    steps = sorted(began)
    versions = [began[number] for number in steps]
    total, count, most = 0, 0, 0
    for row in rows:
        if row.error is None and row.mask.any():
            found = [bisect.bisect_right(versions, version) - 1 for version in _versions(row)]
            ages = [step - (steps[place] if place >= 0 else steps[0] - 1) for place in found]
            total, count, most = total + sum(ages), count + len(ages), max(most, *ages)
    return {"train/staleness_mean": total / max(1, count), "train/staleness_max": float(most)}


def _versions(row: Experience) -> list[int]:
    """Of each trained decision."""
    mixed = row.weight_versions if isinstance(row, Sample) else None
    versions_T = np.full(len(row.mask), row.weight_version) if mixed is None else mixed
    return [int(version) for version in versions_T[row.mask]]
