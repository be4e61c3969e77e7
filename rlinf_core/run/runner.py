"""Runs a composed job: warm start, steps, validation, checkpoints, export."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.api import OptimizerConfig
from rlinf_core.comm.stream import Stream
from rlinf_core.errors import WorkerDied
from rlinf_core.flows.flow import StepResult, merge_reports
from rlinf_core.flows.parts import Parts
from rlinf_core.plugins import plugins
from rlinf_core.policies import of_all
from rlinf_core.roles.setup import build
from rlinf_core.run.ahead import RunAhead
from rlinf_core.run.batches import KeptBatches
from rlinf_core.run.checkpoint import SCORE, Checkpoint, CheckpointStore
from rlinf_core.run.compose import RunGraph, make_source, start
from rlinf_core.run.evaluate import Scores
from rlinf_core.run.events import Events
from rlinf_core.run.healing import Restarts
from rlinf_core.run.interrupt import Interrupt
from rlinf_core.run.metrics import JsonLines, TrackerSet
from rlinf_core.run.output import CHECKPOINTS, METRICS, claim, clear_failed_start, put_in_place, refuse_used
from rlinf_core.run.planning import Planning, prepare, resumed
from rlinf_core.run.resuming import FOREIGN, lacks, refuse_changes_of_data, refuse_other_backend
from rlinf_core.run.sample_log import SAMPLES, records
from rlinf_core.run.saving import Saving, score
from rlinf_core.run.scaling import Scaling, refuse_impossible, with_scale_of
from rlinf_core.run.steering import Steering
from rlinf_core.run.step_times import step_times
from rlinf_core.run.summary import RunSummary
from rlinf_core.run.trace import TRACE, Trace
from rlinf_core.run.videos import Kind, Videos

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlinf_core.api import Engine
    from rlinf_core.api.spans import HostSpan
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.flows.flow import Requests
    from rlinf_core.run.view import View
    from rlinf_core.types import Experience, Trajectory

SAMPLES_LOGGED = 8  # rows of each step that go to samples.jsonl
WARM_CHUNK = 25  # supervised steps a call
STOP_S = 2.0  # that workers get to close
HURRIED_STOP_S = 0.3  # after Ctrl-C: people wait for their prompt


class Runner:
    """One run from its settings to its summary."""

    def __init__(
        self,
        config: RunConfig,
        dumped: Mapping[str, Any],
        view: View,
        *,
        resume: bool,
        allow_changes: bool = False,
        engine: Engine | None = None,
        restarts: Restarts | None = None,
    ) -> None:
        self.config = config
        self.engine: Engine = build(config.engine) if engine is None else engine
        self.restarts = restarts or Restarts(self.engine.restarts)
        self.output = Path(config.output)
        self.view = view
        self.resume = resume
        self.allow_changes = allow_changes
        self.step = 0
        self._dumped = dumped
        self._warm_done = config.warm_start.steps == 0
        self._store = CheckpointStore(self.output / CHECKPOINTS, config.checkpoint.keep)
        self._events = Events(plugins().observers(), view.warn)
        self._trackers = TrackerSet({}, view.warn)
        self._logged: dict[str, float] = {}  # of the last step
        self._scaling: Scaling | None = None  # while workers are there
        lag = config.train.max_staleness
        parts = Parts(config.sampling.max_new_tokens, lag) if config.train.partial_rollouts else None
        self._ahead = RunAhead(lag, config.train.steps, self._requests, parts)

    def run(self) -> RunSummary:
        """Train to the end, or until Ctrl-C. Every process has ended when this returns or raises."""
        began = time.perf_counter()
        checkpoint = self._find_start()
        self.planning: Planning = prepare(self.config, self.engine)
        if checkpoint is not None:
            self.planning = resumed(self.planning, self.config, checkpoint.step)
            self.planning = with_scale_of(self.planning, self.output, checkpoint.step)
        refuse_impossible(self.config, self.planning)
        self.source = make_source(self.config)
        if checkpoint is not None:
            self._go_on_with_data(checkpoint)
        self._events.ask("rlinf_configure", config=self.config)
        made = not self.output.exists()
        if not self.resume:
            claim(self.output, self.config, self._dumped, resume=False)
        self.summary = RunSummary(self.output, checkpoint.step if checkpoint else 0, 0.0)
        error: BaseException | None = None
        try:
            self._run_workers(checkpoint)
        except BaseException as err:
            error = err
            raise
        finally:
            self._events.tell("rlinf_run_end", run=self, error=error)
            self._trackers.finish(error)
            if error is not None and not self.resume:
                clear_failed_start(self.output, made=made)
        self.summary.seconds = time.perf_counter() - began
        return self.summary

    def _find_start(self) -> Checkpoint | None:
        if not self.resume:
            refuse_used(self.output)
            return None
        self._store.tidy()
        checkpoint = self._store.latest()
        if checkpoint is None:
            self.view.warn("no checkpoint yet: the run starts from its beginning")
        return checkpoint

    def _run_workers(self, checkpoint: Checkpoint | None) -> None:
        self.view.phase("starting workers")
        self.graph: RunGraph = start(
            self.config, self.planning.first, self.engine, self.restarts, self.view.note
        )
        self._saving = Saving(
            self._store, self.graph.crew, background=self.config.checkpoint.background, told=self._saved
        )
        patience = STOP_S
        try:
            if checkpoint is not None:
                self._restore(checkpoint)
            if self.resume:  # not before the checkpoint is known to work: a failed attempt changes nothing
                claim(self.output, self.config, self._dumped, resume=True)
            self._open_logs(checkpoint)
            self.steering = Steering(self.config, self.planning, self.graph)
            resumed = self.step if self.resume else None
            self._scaling = Scaling(self.config, self.planning, self.graph, self.view.note, resumed)
            self._events.tell("rlinf_run_start", run=self)
            with Interrupt() as self._interrupt:
                self._train()
            if self._interrupt.requested:
                patience = HURRIED_STOP_S
        except (KeyboardInterrupt, WorkerDied):  # those that wait for a dead one do not end by themselves
            patience = HURRIED_STOP_S
            raise
        finally:
            if self._scaling is not None:
                self._scaling.close()
            self.graph.stop(patience)
            if (unsaved := self._saving.abandon()) is not None:
                self.view.warn(f"the checkpoint that was being written is lost: {unsaved}")

    def _open_logs(self, checkpoint: Checkpoint | None) -> None:
        resumed = None if not self.resume else (checkpoint.step if checkpoint else -1)
        self._metrics = JsonLines(self.output / METRICS, resumed)
        self._trace = Trace(self.output / TRACE, max(0, resumed or 0))
        self._videos = Videos(self.config, self._value if self.graph.crew.needs.critic != "none" else None)
        self._samples = JsonLines(self.output / SAMPLES, resumed)
        self._batches = KeptBatches(self.output, self.config.checkpoint.keep_batches, resumed)
        self._scores = Scores(self.config, self.source, resumed)
        trackers = {component.name: build(component) for component in self.config.trackers}
        self._trackers = TrackerSet(trackers, self.view.warn)
        self._trackers.start(self.output, self._dumped, checkpoint.step if checkpoint else 0)

    def _train(self) -> None:
        if not self._warm_done:
            self._warm_start()
        if self.step == 0 and not self.summary.first and not self._interrupt.requested:
            self._evaluate({})
            if self.config.warm_start.steps:
                self._save()
        self._scale()
        while self.step < self.config.train.steps and not self._interrupt.requested:
            self._one_step()
        self._finish()

    def _finish(self) -> None:
        self._interrupt.settle()
        if self._interrupt.requested:
            self.view.phase("interrupted; saving")
            self.summary.interrupted = True
        if self._warm_done and self._saving.last_step != self.step:
            self._save()
        self._saving.finish()
        wanted = self.config.checkpoint.keep_best
        if wanted and self._store.best_step() is None:
            self.view.warn(f"checkpoint.keep_best: no saved step had a metric {wanted.removeprefix('-')!r}")
        if self.config.checkpoint.export and not self._interrupt.requested:
            self.summary.exported = self._export()
        self.summary.step = self.step

    def _export(self) -> Path:
        """Written aside first, so that a failure leaves the export of an earlier end as it was."""
        draft, final = self.output / ".draft-export", self.output / "export"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            self.graph.actor.call("export", str(draft)).wait()
            put_in_place(draft, final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return final

    def _one_step(self) -> None:
        self._trace.write(self.step, self.graph.engine.drain_spans())  # of what came before
        began = time.monotonic()
        self.graph.heal()
        with self._batches.of(self.step + 1, self.graph):
            result = self._ahead.step(self.graph.flow, self.step)
        if not self.steering.settled:  # what is measured is whole steps
            self._ahead.settle()
        ended = time.monotonic()
        spans = self.graph.engine.drain_spans()
        self.step += 1
        self.restarts.completed()
        self._trace.add("step", began, ended)
        self._trace.write(self.step, spans)
        metrics = result.metrics
        metrics["time/step"] = ended - began
        ahead = self._ahead.lag > 0
        metrics |= step_times(spans, began, ended, self.graph.devices, ahead=ahead) | self.steering.predicted
        tokens = sum(row.length for row in of_all(result.rows))
        metrics["util/tokens_per_s"] = tokens / metrics["time/step"]
        metrics["util/samples_per_s"] = len(result.rows) / metrics["time/step"]
        every = self.config.eval.every
        if (every and self.step % every == 0) or self.step == self.config.train.steps:
            self._evaluate(metrics)
        else:
            self._log(metrics)
        self._log_samples(result)
        self.view.step(self.step, result)
        self._events.tell("rlinf_step_end", run=self, step=self.step, metrics=metrics)
        self._saving.check()
        every = self.config.checkpoint.every
        if every and self.step % every == 0 and not self._interrupt.requested:
            self._save()
        self._film("train", result.rows)
        self._steer(result, (began, ended), spans)
        self._scale(ended - began)

    def _requests(self, step: int) -> Requests:
        return self.source.train(step).with_first(partial(self._videos.training, step + 1))

    def _steer(self, result: StepResult, window: tuple[float, float], spans: list[HostSpan]) -> None:
        plan = self.steering.after(self.step, result, window, spans)
        for note in self.steering.notes():
            self.view.note(note)
        if plan is not None and self.step < self.config.train.steps and not self._interrupt.requested:
            self.view.phase(f"moving to a {plan.mode} plan")
            self._saving.finish()
            self._ahead.settle()
            with self._trace.span("move"):
                self.steering.move(self.step, plan)

    def _scale(self, step_s: float | None = None) -> None:
        """Change numbers of ranks, if that is due."""
        began = time.monotonic()
        if self._scaling is None or self.step >= self.config.train.steps or self._interrupt.requested:
            return
        pending = self._scaling.due(self.step, step_s)
        if pending is not None:
            self.view.phase("changing the number of ranks")
            with self._trace.span("scale"):
                self._saving.finish()
                self._ahead.settle()
                self._scaling.carry_out(self.step, pending, began)
            self.steering.fix(self.step)

    def _log_samples(self, result: StepResult) -> None:
        shown = self.graph.flow.learners.shown
        samples = records(self.step, result.rows[:SAMPLES_LOGGED], self.source.decode, shown)
        for sample in samples:
            self._samples.write(sample)
        self._trackers.log_samples(self.step, samples)

    def _evaluate(self, metrics: dict[str, float]) -> None:
        """Add evaluation metrics to a step's and log both as one record."""
        self.view.phase("evaluating")
        began = time.perf_counter()
        with self._trace.span("evaluate"):
            self._ahead.settle()
            self.graph.heal()
            rows = self.graph.flow.evaluate(Stream.of(self._videos.evaluation(self.step, self.source.eval())))
        found = self._scores.take(self.step, rows)
        metrics.update(found)
        metrics["time/eval"] = time.perf_counter() - began
        self.summary.first = self.summary.first or found
        self.summary.last = found
        self._log(metrics)
        self.view.eval(self.step, found, rows)
        self._film("eval", rows)

    def _film(self, kind: Kind, rows: Sequence[Experience]) -> None:
        if not self.config.video.every:
            return
        with self._trace.span("videos"):
            for video in self._videos.write(self.step, kind, rows):
                self._trackers.log_picture(self.step, f"videos/{video.name}", video.still)
                self._trackers.log_video(self.step, f"videos/{video.name}", video.path)

    def _log(self, metrics: dict[str, float]) -> None:
        for name, count in self.graph.flow.counts().items():
            metrics[name] = count
            self.summary.counts[name] = self.summary.counts.get(name, 0.0) + count
        if self._scaling is not None:
            metrics |= self._scaling.metrics()
        if self.graph.healing is not None:
            metrics |= self.graph.healing.counts()
        self._metrics.write({"step": self.step, **metrics})
        self._logged = metrics
        self._trackers.log(self.step, metrics)

    def _warm_start(self) -> None:
        warm = self.config.warm_start
        own = self.config.optimizer
        optimizer = OptimizerConfig(
            lr=warm.lr, betas=own.betas, grad_clip=own.grad_clip, schedule=warm.schedule
        )
        self.graph.actor.call("reset_optimizer", optimizer, warm.steps).wait()
        for done in range(0, warm.steps, WARM_CHUNK):
            if self._interrupt.requested:
                return
            count = min(WARM_CHUNK, warm.steps - done)
            reports = self.source.imitate(self.graph.actor, done, count).wait()
            self.view.warm_start(done + count, warm.steps, merge_reports(reports))
        self.graph.actor.call("start_rl").wait()
        self._warm_done = True

    def _value(self, row: Trajectory) -> NDArray[np.float32]:
        """What the critic says of each position of an episode."""
        groups = self.graph.crew.groups
        judge = groups.get("critic", groups["actor"])
        values_T: NDArray[np.float32] = (
            judge.call("estimate", [row], frozenset({"values"})).wait()[0].values_BT[0].numpy()
        )
        return values_T

    def _save(self) -> None:
        self._ahead.settle()
        state = {
            "source": self.source.state_dict(),
            "first_eval": self.summary.first,
            "ranks": self.graph.ranks,
            "seed": self.config.seed,
            "backend": self.config.backend.name,
            "ahead": self._ahead.state_dict(),
            SCORE: score(self.config.checkpoint.keep_best, self._logged),
        }
        with self._trace.span("save"):
            self._saving.save(self.step, state, self._ahead.write)

    def _saved(self, step: int, path: Path) -> None:
        self._events.tell("rlinf_checkpoint_saved", run=self, step=step, path=path)

    def _go_on_with_data(self, checkpoint: Checkpoint) -> None:
        try:
            changes = self.source.changes(checkpoint.state["source"])
            if not self.allow_changes:
                refuse_changes_of_data(changes, self.config)
            self.source.load_state_dict(checkpoint.state["source"])
            if not changes:
                self._ahead.load(checkpoint.path, checkpoint.state["ahead"], self.source.prompt)
        except FOREIGN as err:
            raise lacks(checkpoint, err) from err

    def _restore(self, checkpoint: Checkpoint) -> None:
        try:
            refuse_other_backend(checkpoint, self.config)
            algorithm, first = (dict(checkpoint.state[name]) for name in ("algorithm", "first_eval"))
            self.summary.first, ranks = first, checkpoint.state["ranks"]
        except FOREIGN as err:
            raise lacks(checkpoint, err) from err
        self.graph.crew.load(checkpoint.path, algorithm)
        if ranks != self.graph.ranks:
            self.view.warn(
                f"the checkpoint was written by {ranks} ranks, this run has {self.graph.ranks}: training "
                "continues, but not bit for bit"
            )
        self.step = checkpoint.step
        self._warm_done = True
