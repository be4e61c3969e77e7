"""`rlinf eval`: how good a checkpoint, or any model, is at held-out problems."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_core.cli.completing import run_or_settings, steps
from rlinf_core.cli.options import with_options
from rlinf_core.cli.table import print_table
from rlinf_core.config.options import Options
from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.evaluation.results import Result
    from rlinf_core.run.checkpoint import Checkpoint
    from rlinf_core.run.evaluate import Wanted
    from rlinf_core.types import Experience

LEFT_OUT = ("overrides", "algo", "output", "steps", "mode", "lr", "lora_rank", "group_size")
OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
TRAINING = ("train.", "algo.", "optimizer", "critic", "warm_start", "checkpoint", "video", "schedule", "mode")
HEADS = ("metric", "value", "95 % interval")


@dataclass(frozen=True)
class Subject:
    """Whose policy is evaluated: a checkpoint's, or the model that the settings name."""

    run: Path | None
    config: RunConfig
    own: RunConfig | None = None  # settings of the run itself
    checkpoint: Checkpoint | None = None


@functools.partial(with_options, leave_out=LEFT_OUT)
def command(
    options: Options,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folder of a run, whose checkpoint is evaluated by the run's own settings; and settings by "
            "dotted key, such as sampling.max_new_tokens=512.",
            metavar="[RUN] [KEY=VALUE...]",
            show_default=False,
            autocompletion=run_or_settings,
        ),
    ] = None,
    step: Annotated[
        str,
        typer.Option(
            "--step",
            help="Of the checkpoint: a number, latest or best.",
            metavar="STEP",
            autocompletion=steps,
        ),
    ] = "latest",
    samples: Annotated[
        int | None, typer.Option("--samples", min=0, help="Problems; 0 = all rows.", metavar="N")
    ] = None,
    responses: Annotated[
        int | None, typer.Option("--responses", min=1, help="To each problem.", metavar="N")
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Of pass@k, such as 1,4,8.", metavar="K,...")] = "",
    greedy: Annotated[
        bool, typer.Option("--greedy", help="The likeliest token or action each time.")
    ] = False,
    split: Annotated[
        str, typer.Option("--split", help="Rows of the data: eval, train or all.", metavar="ROWS")
    ] = "eval",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the same JSON.", metavar="FILE")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", help="File for every response (JSON lines).", metavar="FILE")
    ] = None,
) -> None:
    """Evaluate a checkpoint of a run, or any model, on held-out problems or in a simulator.

    Takes the flags of `rlinf train` that say what the task is. Nothing is trained, and nothing is written
    into the run.
    """
    from rlinf_core.run.evaluating import evaluate

    subject = _subject(options, given or [], step)
    wanted = _wanted(responses, k, split)
    config = _settings(subject.config, samples, greedy=greedy)
    _check(config, wanted)
    asked = _asked(subject, config, wanted)
    with _status(len(asked.chunks), wanted.responses, quiet=as_json):
        result, found = evaluate(config, subject.checkpoint, asked, wanted)
    if subject.run is not None and subject.checkpoint is not None:
        result.of |= {"run": str(subject.run), "step": subject.checkpoint.step}
    _write(result, found, output, rows)
    if as_json:
        typer.echo(json.dumps(result.as_dict()))
    else:
        _show(result)


def _subject(options: Options, given: Sequence[str], step: str) -> Subject:
    from rlinf_core.config.compose import compose
    from rlinf_core.run.export import find_checkpoint
    from rlinf_core.run.output import settings_of

    runs = [text for text in given if Path(text).is_dir() or not OVERRIDE.match(text)]
    overrides = tuple(text for text in given if text not in runs)
    options = replace(options, overrides=overrides)
    if not runs:
        _refuse_nothing(options, step)
        return Subject(None, compose(options))
    run = Path(runs[0])
    if len(runs) > 1:
        raise ConfigError(f"one run at a time, these are {len(runs)}: {', '.join(runs)}; see rlinf compare")
    settings = settings_of(run, otherwise=", or a model by --model")
    if options.model is not None:
        raise ConfigError(
            f"--model {options.model} beside {run}: a checkpoint is of the run's own model. To evaluate "
            f"another one on the same task: rlinf eval --config {settings} --model {options.model}"
        )
    own = compose(Options(config=(settings,)))
    config = compose(replace(options, config=(settings, *options.config)))
    return Subject(run, config, own, find_checkpoint(run, step))


def _refuse_nothing(options: Options, step: str) -> None:
    named = (options.recipe, options.model, *options.config)
    if not any(named) and not any(text.startswith("model") for text in options.overrides):
        raise ConfigError(
            "nothing to evaluate: name the folder of a run, or a model by --model PATH with --data and "
            "--reward, or with --simulator"
        )
    if step != "latest":
        raise ConfigError(f"--step {step} is of a run's checkpoint, and no run is named")


def _wanted(responses: int | None, k: str, split: str) -> Wanted:
    from rlinf_core.run.evaluate import SPLITS, Wanted

    try:
        ks = tuple(sorted({int(part) for part in k.split(",")})) if k else ()
    except ValueError:
        ks = (0,)
    if any(each < 1 for each in ks):
        raise ConfigError(f"--k {k}: numbers of 1 or more, with commas between them, such as --k 1,4,8")
    rows = next((each for each in SPLITS if each == split), None)
    if rows is None:
        raise ConfigError(f"--split {split}: there are {', '.join(SPLITS)}")
    return Wanted(responses or max(ks, default=1), ks, rows)


def _settings(config: RunConfig, samples: int | None, *, greedy: bool) -> RunConfig:
    from rlinf_core.run.evaluating import without_training

    config = without_training(config)
    changed: dict[str, Any] = {} if samples is None else {"samples": samples}
    changed |= {"temperature": 0.0} if greedy else {}
    return replace(config, eval=replace(config.eval, **changed))


def _check(config: RunConfig, wanted: Wanted) -> None:
    from rlinf_core.config.check import check
    from rlinf_core.config.check_isolation import require_packages
    from rlinf_core.plugins import plugins
    from rlinf_core.run.evaluating import refuse_idle

    for warning in check(config, plugins()):
        if not warning.startswith(TRAINING):
            typer.echo(f"warning: {warning}", err=True)
    require_packages(config, plugins())
    refuse_idle(config, wanted)


def _asked(subject: Subject, config: RunConfig, wanted: Wanted) -> Any:
    from rlinf_core.run.evaluating import ask, refuse_foreign_data

    asked = ask(config, wanted)
    own = subject.own
    same = own is not None and (own.data, own.seed) == (config.data, config.seed)
    if subject.checkpoint is not None and same and wanted.split == "eval":
        refuse_foreign_data(config, subject.checkpoint, asked)
    return asked


def _status(problems: int, responses: int, *, quiet: bool) -> Any:
    """Something that moves, on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    each = f" with {responses} responses each" if responses > 1 else ""
    return nullcontext() if quiet or not console.is_terminal else console.status(f"{problems} problems{each}")


def _write(result: Result, found: Sequence[Experience], output: Path | None, rows: Path | None) -> None:
    from rlinf_core.flows.flow import record
    from rlinf_core.run.metrics import jsonable

    texts = {
        output: json.dumps(result.as_dict()) + "\n",
        rows: "".join(f"{json.dumps(jsonable(record(row)))}\n" for row in found) if rows else "",
    }
    for path, text in texts.items():
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            except OSError as err:
                raise ConfigError(f"{path}: cannot be written: {err.strerror}; name another file") from err


def _show(result: Result) -> None:
    task = result.on.get("data") or result.on.get("simulator")
    greedy = result.how.get("greedy") or result.how.get("temperature") == 0
    typer.echo(
        f"{result.label} on {len(result.problems)} problems of {task}{', greedy' if greedy else ''}", err=True
    )
    print_table(HEADS, [_row(name, value, result) for name, value in result.metrics.items()])


def _row(name: str, value: float, result: Result) -> tuple[str, str, str]:
    between = result.intervals.get(name)
    percent = name in ("accuracy", "success", "truncated") or name.startswith("pass@")
    form = "{:.1%}" if percent else "{:.4g}"
    return name, form.format(value), "" if between is None else " to ".join(map(form.format, between))
