"""What a person sees of a run: live progress on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from rlinf_core.run.notes import Notes

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.flows.flow import StepResult
    from rlinf_core.run.summary import RunSummary
    from rlinf_core.types import Experience, Sample

TABLE_ROWS = 4


class View:
    """Shows one run. On a terminal a progress line stays below what is printed."""

    def __init__(self, config: RunConfig, console: Console | None = None) -> None:
        self.config = config
        self.console = console or Console(highlight=False)
        self.live = self.console.is_terminal
        self._notes = Notes(Path(config.output))
        self._warned: set[str] = set()
        self._first_score: float | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> View:
        config = self.config
        parts = [config.algo.name, config.backend.name, config.model.name]
        parts += [part.name for part in (config.data, config.simulator) if part]
        self.console.print(
            f"[bold]rlinf train[/] {escape(' · '.join(parts))} → {escape(config.output)}", soft_wrap=True
        )
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def phase(self, text: str) -> None:
        """Something other than a step begins."""
        if self.live:
            self._describe(text)

    def warm_start(self, done: int, total: int, metrics: dict[str, float]) -> None:
        """Supervised steps are done."""
        loss = metrics.get("train/imitation_loss", float("nan"))
        facts = f"loss {loss:.3f}"
        self._advance("warm start", done, total, facts)
        if not self.live and (done == total or done % 100 == 0):
            self.console.print(f"warm start {done}/{total}  {facts}")

    def step(self, step: int, result: StepResult) -> None:
        """A step of reinforcement learning is done."""
        facts = _facts(result.metrics)
        total = self.config.train.steps
        self._advance("training", step, total, facts)
        every = max(1, total // 50)
        if not self.live and (step % every == 0 or step == total):
            self.console.print(f"step {step}/{total}  {facts}", soft_wrap=True)
        for warning in result.warnings:
            self.warn(warning, step)

    def eval(self, step: int, metrics: dict[str, float], rows: Sequence[Experience]) -> None:
        """Held-out data was evaluated."""
        score = _score(metrics)
        if score is None:
            return
        name, value = score
        first = self._first_score
        was = "" if first is None else f"  (before training {_shown(name, first)})"
        if first is None:
            self._first_score = value
        what = "problems" if self.config.simulator is None else "episodes"
        others = _of_others(metrics, "eval", name)
        self.console.print(
            f"step {step}: [bold]held-out {name} {_shown(name, value)}[/] on {len(rows)} {what}{was}"
            + "".join(f"  {policy} {_shown(name, each)}" for policy, each in others)
        )
        if step in (0, self.config.train.steps):
            self._table(rows)

    def warn(self, text: str, step: int | None = None) -> None:
        """Say something that matters; once a run, whatever its numbers."""
        kind = re.sub(r"\d[\d.]*", "#", text)
        if kind not in self._warned:
            self._warned.add(kind)
            at = "" if step is None else f"step {step}: "
            self.console.print(f"[yellow]warning:[/] {at}{escape(text)}", soft_wrap=True)
            self._notes.add("warning", text, step)

    def note(self, text: str) -> None:
        """Something worth knowing."""
        self.console.print(escape(text), soft_wrap=True)
        self._notes.add("note", text)

    def stopped(self, resumable: bool) -> None:
        """The run was ended in the middle of its work."""
        self._progress.stop()
        how = f"; continue with: rlinf train --resume {escape(self.config.output)}" if resumable else ""
        self.console.print(f"[bold]interrupted[/] without saving{how}", soft_wrap=True)

    def end(self, summary: RunSummary) -> None:
        """The run is over."""
        self._progress.stop()
        if summary.counts.get("env/restarts"):
            self.console.print(_losses(summary.counts), soft_wrap=True)
        if summary.interrupted:
            self.console.print(
                f"[bold]interrupted[/] at step {summary.step}; continue with: "
                f"rlinf train --resume {escape(str(summary.output))}",
                soft_wrap=True,
            )
            return
        before, after = (_score(m) for m in (summary.first, summary.last))
        if before and after:
            self.console.print(
                f"[bold green]held-out {after[0]} {_shown(*before)} → {_shown(*after)}[/] "
                f"after {summary.step} steps in {summary.seconds:.0f} s"
            )
        self.console.print(f"metrics  {escape(str(summary.output / 'metrics.jsonl'))}", soft_wrap=True)
        if self.config.video.every:
            self.console.print(f"videos   {escape(str(summary.output / 'videos'))}", soft_wrap=True)
        if summary.exported:
            self.console.print(f"model    {escape(str(summary.exported))}", soft_wrap=True)

    def _describe(self, text: str) -> None:
        if self._task is None:
            self._task = self._progress.add_task(text, total=None, facts="")
        self._progress.update(self._task, description=text)

    def _advance(self, text: str, done: int, total: int, facts: str) -> None:
        if self.live:
            self._describe(text)
            if self._task is not None:
                self._progress.update(self._task, completed=done, total=total, facts=facts)

    def _table(self, rows: Sequence[Experience]) -> None:
        shown = [row for row in rows if hasattr(row, "prompt")][:TABLE_ROWS]
        if not shown:
            return
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("prompt", "response", "answer", "reward"):
            table.add_column(name, overflow="fold", max_width=48)
        for row in shown:
            prompt = cast("Sample", row).prompt
            text = getattr(row, "text", "")
            reward = "error" if row.reward is None else f"{row.reward:g}"
            table.add_row(_short(prompt.text), _short(text), _short(str(prompt.answer)), reward)
        self.console.print(table)


def _facts(metrics: dict[str, float]) -> str:
    speed = ("tokens/s", "util/tokens_per_s", "{:,.0f}")
    if "util/env_steps_per_s" in metrics:  # a policy that acts has no tokens, or several an action
        speed = ("actions/s", "util/env_steps_per_s", "{:,.0f}")
    named = [
        ("loss", "train/imitation_loss", "{:.3f}"),
        ("reward", "train/reward", "{:.3f}"),
        ("length", "train/response_length", "{:.1f}"),
        ("kl", "train/kl", "{:.4f}"),
        ("mismatch", "train/logprob_mismatch", "{:.1e}"),
        speed,
    ]
    facts = [f"{label} {form.format(metrics[key])}" for label, key, form in named if key in metrics]
    facts += [f"{policy}'s reward {each:.3f}" for policy, each in _of_others(metrics, "train", "reward")]
    return "  ".join(facts)


def _of_others(metrics: dict[str, float], group: str, name: str) -> list[tuple[str, float]]:
    """A metric of policies beside the run's own."""
    found = re.compile(f"{group}/([^/]+)/{name}")
    return [(match[1], value) for key, value in metrics.items() if (match := found.fullmatch(key))]


def _score(metrics: dict[str, float]) -> tuple[str, float] | None:
    for name in ("accuracy", "success", "reward"):
        if f"eval/{name}" in metrics:
            return name, metrics[f"eval/{name}"]
    return None


def _shown(name: str, value: float) -> str:
    """A reward may be any number, other scores are shares."""
    return f"{value:.4g}" if name == "reward" else f"{value:.1%}"


def _losses(counts: dict[str, float]) -> str:
    restarts, lost, dropped = (
        int(counts[f"env/{name}"]) for name in ("restarts", "lost_episodes", "dropped_episodes")
    )
    return (
        f"{restarts} processes of environments died, hung or failed and were started again; of {lost} lost "
        f"episodes {lost - dropped} were played again and {dropped} given up"
    )


def _short(text: str, limit: int = 160) -> str:
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return escape(cut)
