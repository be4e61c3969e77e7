"""`rlinf compare`: which of several evaluations is better, problem by problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_core.cli.completing import run_folders, steps
from rlinf_core.cli.table import print_table
from rlinf_core.errors import CheckpointError, ConfigError, DataError

if TYPE_CHECKING:
    from rlinf_core.evaluation.compare import Compared, Comparison
    from rlinf_core.evaluation.results import Result

HEADS = ("result", "value", "95 % interval", "difference", "95 % interval", "p", "better", "worse", "equal")


def command(
    given: Annotated[
        list[Path],
        typer.Argument(
            help="Files of `rlinf eval --output`, or folders of runs; the first is what others are "
            "compared with.",
            metavar="A B...",
            autocompletion=run_folders,
        ),
    ],
    step: Annotated[
        str,
        typer.Option(
            "--step", help="Of runs: a number, latest or best.", metavar="STEP", autocompletion=steps
        ),
    ] = "latest",
    by: Annotated[str, typer.Option("--by", help="score (accuracy or success) or reward.")] = "score",
    seed: Annotated[int, typer.Option("--seed", help="Of the resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare evaluations of the same problems, pair by pair.

    Of a run the evaluation that it made itself at its last step, or at --step.
    """
    from rlinf_core.evaluation.compare import compare

    if len(given) < 2:
        raise ConfigError("nothing to compare: name two results or more, such as a.json b.json or two runs")
    if by not in ("score", "reward"):
        raise ConfigError(f"--by {by}: there are score and reward")
    results = {str(path): _read(path, step) for path in given}
    if len(results) < len(given):
        raise ConfigError("the same result is named twice; name each once")
    found = compare(results, "reward" if by == "reward" else "score", seed)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        _show(found)


def _read(path: Path, step: str) -> Result:
    from rlinf_core.evaluation.results import read_result

    if path.is_dir():
        return _of_run(path, step)
    try:
        return read_result(path.read_text(), path)
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path}: cannot be read ({err}); name a file of `rlinf eval --output`") from err


def _of_run(run: Path, step: str) -> Result:
    from rlinf_core.evaluation.results import read_result
    from rlinf_core.run.checkpoint import BEST, LATEST, CheckpointStore
    from rlinf_core.run.output import CHECKPOINTS, EVALUATIONS

    file = run / EVALUATIONS
    lines = file.read_text().splitlines() if file.exists() else []
    known = {str(json.loads(line)["of"]["step"]): line for line in lines}
    if not known:
        raise CheckpointError(f"{run}: no run has evaluated anything here (no {file}); see rlinf eval")
    if step == LATEST:
        step = list(known)[-1]
    if step == BEST:
        step = str(CheckpointStore(run / CHECKPOINTS, keep=1).best_step())
    if step not in known:
        raise CheckpointError(
            f"--step {step}: {run} did not evaluate then; it did at {', '.join(known)}. Evaluate a "
            f"checkpoint by rlinf eval {run} --step {step} --output FILE"
        )
    return read_result(known[step], file)


def _show(found: Comparison) -> None:
    told = f"{found.by} on {found.problems} problems that all have; each compared with the first"
    typer.echo(told, err=True)
    for key, values in found.how.items():
        typer.echo(f"note: {key} differs: {', '.join(map(str, values))}", err=True)
    print_table(HEADS, [_row(each) for each in found.results])
    tests = {each.difference.test for each in found.results if each.difference is not None}
    typer.echo(
        f"p by {' and '.join(sorted(tests))}; intervals of differences by a paired bootstrap", err=True
    )


def _row(each: Compared) -> tuple[str, ...]:
    value, against = each.value, each.difference
    shown = (each.name, f"{value.mean:.4g}", f"{value.low:.4g} to {value.high:.4g}")
    if against is None:
        return (*shown, "", "", "", "", "", "")
    between = f"{against.low:+.4g} to {against.high:+.4g}"
    counts = (str(against.better), str(against.worse), str(against.equal))
    return (*shown, f"{against.mean:+.4g}", between, f"{against.p:.3g}", *counts)
