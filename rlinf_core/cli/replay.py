"""`rlinf replay`: one step's update made again from what its run has kept, to look into it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_core.cli.completing import kept_steps, run_folders, settings
from rlinf_core.cli.table import print_table
from rlinf_core.cli.train import PLACED
from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.run.material import Material
    from rlinf_core.run.replaying import Replayed

ELSEWHERE = ("engine", "ranks", *PLACED)  # where it runs, not what comes out
BEFORE = (  # what makes the rows, or looks at them
    *("data", "reward", "reward_pool", "rollout", "rollout_process", "simulator", "env_pool"),
    *("eval", "video", "checkpoint", "trackers", "tools", "agent"),
)
GPU_TOLERANCE = 1e-3
HEADS = ("metric", "recorded", "replayed", "difference")


def command(
    run: Annotated[
        Path, typer.Argument(help="Folder of the run.", metavar="RUN", autocompletion=run_folders)
    ],
    step: Annotated[
        int,
        typer.Argument(
            help="Number of the step; the first is 1.", metavar="STEP", min=1, autocompletion=kept_steps
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings to change, to see how the step would have gone with them.",
            metavar="[KEY=VALUE...]",
            show_default=False,
            autocompletion=settings,
        ),
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option("--batch", help="Folder with the rows, such as RUN/not-finite/....", metavar="DIR"),
    ] = None,
    inline: Annotated[
        bool, typer.Option("--inline", help="Everything in this process, for a debugger.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance", min=0.0, help="Of differences; 0 on the CPU, 0.001 on GPUs.", metavar="X"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make the update of one step again, and compare what comes out with what the run wrote down.

    Exit code 1 if they differ. A run keeps what this needs by checkpoint.keep_batches and checkpoint.every.
    """
    from rlinf_core.run.material import find_material
    from rlinf_core.run.replaying import replay

    own = _settings(run, ())
    config = _settings(run, overrides or ())
    changed = _changed(own, config)
    material = find_material(own, step, batch)
    if inline:
        config = _settings(run, (*(overrides or ()), "engine=inline"))
    found = replay(config, material, ranks=1 if inline else 0)
    limit = tolerance if tolerance is not None else 0.0 if found.exact else GPU_TOLERANCE
    judged = not changed and material.whole and bool(found.recorded)
    differing = found.differing(limit) if judged else []
    told = _told(found, material, changed, differing, judged=judged)
    if as_json:
        typer.echo(json.dumps(told))
    else:
        _show(found, told)
    if differing:
        raise typer.Exit(1)


def _settings(run: Path, overrides: Sequence[str]) -> RunConfig:
    from rlinf_core.config.check import check
    from rlinf_core.config.compose import compose
    from rlinf_core.config.options import Options
    from rlinf_core.plugins import plugins
    from rlinf_core.run.output import settings_of

    config = compose(Options(config=(settings_of(run),), output=str(run), overrides=tuple(overrides)))
    check(config, plugins())
    return config


def _changed(own: RunConfig, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Settings that the update depends on. Any: their values. Raises `ConfigError` for others that would
    change nothing."""
    from rlinf_core.config.dump import diff, dump
    from rlinf_core.config.schema import used

    changed = diff(dump(own), dump(config))
    idle = [key for key in changed if not used(key, BEFORE)]
    if idle:
        raise ConfigError(
            f"{idle[0]}: a replay takes rows, rewards and log-probabilities as they were kept, so that this "
            "changes nothing; drop it"
        )
    return {key: values for key, values in changed.items() if used(key, ELSEWHERE)}


def _told(
    found: Replayed,
    material: Material,
    changed: dict[str, tuple[Any, Any]],
    differing: Sequence[str],
    *,
    judged: bool,
) -> dict[str, Any]:  # Any: JSON values
    metrics = {
        name: {"recorded": found.recorded.get(name), "replayed": value}
        for name, value in found.metrics.items()
    }
    return {
        "run": str(material.run),
        "step": material.step,
        "first": material.first,
        "rows": len(material.batches[-1].rows),
        "whole": material.whole,
        "changed": {key: list(values) for key, values in changed.items()},
        "metrics": metrics,
        "weights": found.weights,
        "differing": list(differing) if judged else None,
        "notes": found.notes,
    }


def _show(found: Replayed, told: dict[str, Any]) -> None:  # Any: JSON values
    """The table to stdout, the rest to stderr."""

    def say(line: str) -> None:
        typer.echo(line, err=True)

    step, first = told["step"], told["first"]
    begin = f"from checkpoint step_{first - 1}" if first > 1 else "from the run's beginning"
    before = f"step {first}" if first == step - 1 else f"steps {first} to {step - 1}"
    through = f", through {before}" if first < step else ""
    say(f"step {step} of {told['run']}: {told['rows']} rows, {begin}{through}")
    for key, (before, now) in told["changed"].items():
        say(f"  {key}: {before!r} -> {now!r}")
    print_table(HEADS, [_row(name, value, found) for name, value in found.metrics.items()])
    for line in (*told["notes"], _of_weights(found, step), _verdict(told)):
        say(line)


def _row(name: str, value: float, found: Replayed) -> tuple[str, str, str, str]:
    before = found.recorded.get(name)
    if before is None:
        return name, "", f"{value:.9g}", ""
    gap = 0.0 if before == value else value - before
    return name, f"{before:.9g}", f"{value:.9g}", f"{gap:.3g}"


def _of_weights(found: Replayed, step: int) -> str:
    if found.weights is None:
        return (
            f"weights: there is no checkpoint step_{step} to compare them with (checkpoint.every=1 writes it)"
        )
    off = {name: gap for name, gap in found.weights.items() if gap != 0}
    if not off:
        return f"weights: those of checkpoint step_{step}, bit for bit ({len(found.weights)} tensors)"
    worst = max(off, key=lambda name: off[name])
    return (
        f"weights: {len(off)} of {len(found.weights)} tensors are not those of checkpoint step_{step}; "
        f"the furthest off is {worst}, by {off[worst]:.3g}"
    )


def _verdict(told: dict[str, Any]) -> str:  # Any: JSON values
    if told["changed"]:
        return "not judged: other settings"
    if not told["whole"]:
        return "not judged: not all rows of the step were kept"
    if told["differing"] is None:
        return "not judged: the run wrote nothing down of this step"
    if told["differing"]:
        return f"differs: {', '.join(told['differing'][:8])}" + (
            ", ..." if len(told["differing"]) > 8 else ""
        )
    return "the same"
