"""`rlinf demos`: demonstrations by the experts that come with simulators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlinf_core.cli.completing import plugins_of, recipes, settings
from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_core.config.schema import Component

app = typer.Typer(add_completion=False, help="Record demonstrations.", no_args_is_help=True)


@app.callback()
def demos() -> None:
    """Record demonstrations of simulators that have an expert."""


@app.command("record")
def record(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the dataset.", metavar="DIR")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings, such as simulator.task=reach-v3.", metavar="KEY=VALUE...", autocompletion=settings
        ),
    ] = None,
    simulator: Annotated[
        str | None,
        typer.Option(
            "--simulator", help="Simulator.", metavar="NAME", autocompletion=plugins_of("simulator")
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="With the simulator of this recipe.", metavar="NAME", autocompletion=recipes
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", help="With the simulator of this recipe (YAML).", metavar="FILE"),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", help="That are kept.")] = 50,
    speed: Annotated[
        tuple[float, float],
        typer.Option("--speed", help="Each episode has one between the two; 1 is full.", metavar="LOW HIGH"),
    ] = (1.0, 1.0),
    noise: Annotated[
        float,
        typer.Option("--noise", help="Deviation of executed from recorded actions, in half action ranges."),
    ] = 0.0,
    failures: Annotated[bool, typer.Option("--failures", help="Keep episodes without success too.")] = False,
    envs: Annotated[int, typer.Option("--envs", help="Environments at once.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of everything.")] = 0,
    fps: Annotated[int, typer.Option("--fps", help="Actions a second, as the dataset says.")] = 20,
    images: Annotated[
        str, typer.Option("--images", help="png keeps every pixel, video is smaller.", metavar="png|video")
    ] = "png",
) -> None:
    """Write a LeRobot dataset of episodes that the simulator's expert plays.

    Training imitates it before it reinforces: rlinf train warm_start.demonstrations=DIR warm_start.steps=500
    """
    from rlinf_core.config.compose import simulator_of
    from rlinf_core.config.options import Options
    from rlinf_core.demos.lerobot import write_dataset
    from rlinf_core.roles.setup import build
    from rlinf_core.run.recording import Recording, Tally
    from rlinf_core.run.recording import record as recorded

    wanted, kind = Recording(episodes, speed, noise, failures, seed), _kind(images)
    if envs < 1 or fps < 1:
        raise ConfigError(f"--envs and --fps: {envs} and {fps}: must be 1 or more")
    options = Options(
        overrides=tuple(overrides or ()), recipe=recipe, config=tuple(config or ()), simulator=simulator
    )
    component = simulator_of(options)
    _check_expert(component)
    made, tally = build(component, min(envs, episodes), seed), Tally()
    try:
        write_dataset(output, recorded(made, wanted, tally), fps=fps, robot=component.name, images=kind)
    finally:
        made.close()
    typer.echo(
        f"{episodes} episodes of {component.name} in {output}; the expert succeeded in {tally.succeeded} of "
        f"{tally.played}"
    )


def _kind(images: str) -> Literal["png", "video"]:
    if images not in ("png", "video"):
        raise ConfigError(f"--images {images}: use png or video")
    return "png" if images == "png" else "video"


def _check_expert(component: Component) -> None:
    """Raise `ConfigError` if the simulator has none."""
    from rlinf_core.plugins import plugins

    def has(name: str) -> bool:
        return bool(plugins().get("simulators", name).provides.expert)

    if not has(component.name):
        others = [
            info.name for info in plugins().info("simulators") if info.status == "ok" and has(info.name)
        ]
        raise ConfigError(
            f"--simulator {component.name}: it has no expert to record; those with one: "
            f"{', '.join(others) or 'none'}"
        )
