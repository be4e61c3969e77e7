"""`rlinf demos`: demonstrations by the experts that come with simulators."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlinf_core.cli.completing import plugins_of, recipes, settings
from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_core.config.options import Options
    from rlinf_core.config.schema import Component, RunConfig
    from rlinf_core.demos.layout import Images
    from rlinf_core.run.checkpoint import Checkpoint
    from rlinf_core.run.recording import Recording, Tally
    from rlinf_core.types import Trajectory

FPS, EXPERT_SHARE = 20, 0.25  # where nothing else is said
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
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            help="This run's policy plays; what the expert would do then is recorded.",
            metavar="RUN",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", help="Of the run's checkpoint: a number, latest or best.", metavar="STEP"),
    ] = None,
    expert_share: Annotated[
        float | None,
        typer.Option(
            "--expert-share", help="Of the policy's decisions, taken by the expert: 0.25.", metavar="P"
        ),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to the dataset that is there.")] = False,
    episodes: Annotated[int, typer.Option("--episodes", help="That are kept.")] = 50,
    speed: Annotated[
        tuple[float, float],
        typer.Option("--speed", help="Each episode has one between the two; 1 is full.", metavar="LOW HIGH"),
    ] = (1.0, 1.0),
    noise: Annotated[
        float,
        typer.Option("--noise", help="Deviation of executed from recorded actions, in half action ranges."),
    ] = 0.0,
    failures: Annotated[
        bool, typer.Option("--failures", help="Keep episodes without success too, as with --policy.")
    ] = False,
    envs: Annotated[int, typer.Option("--envs", help="Environments at once.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of everything.")] = 0,
    fps: Annotated[
        int | None, typer.Option("--fps", help="Actions a second, as the dataset says: 20.", metavar="N")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            "--images", help="png (unless told) keeps every pixel, video is smaller.", metavar="png|video"
        ),
    ] = None,
) -> None:
    """Write a LeRobot dataset of episodes that the simulator's expert plays, or labels while a policy plays.

    Training imitates it before it reinforces: rlinf train warm_start.demonstrations=DIR warm_start.steps=500
    """
    from rlinf_core.config.options import Options
    from rlinf_core.demos.lerobot import episodes_of
    from rlinf_core.run.recording import Recording

    target = _Target(output, append, fps, images)
    options = Options(
        overrides=tuple(overrides or ()), recipe=recipe, config=tuple(config or ()), simulator=simulator
    )
    cast = _cast(options, policy, step, expert_share)
    there = episodes_of(output) if append else 0
    wanted = Recording(episodes, speed, noise, failures or policy is not None, seed, there)
    if envs < 1:
        raise ConfigError(f"--envs: {envs}: must be 1 or more")
    tally = _play(cast, wanted, target, min(envs, episodes))
    added = f", {there + episodes} by now" if append else ""
    typer.echo(
        f"{episodes} episodes of {cast.simulator.name} in {output}{added}; the {cast.player} succeeded in "
        f"{tally.succeeded} of {tally.played}"
    )


@dataclass(frozen=True)
class _Target:
    """Where episodes go."""

    folder: Path
    append: bool
    fps: int | None
    images: str | None

    def __post_init__(self) -> None:
        if self.append and (self.fps, self.images) != (None, None):
            flag = "--fps" if self.images is None else "--images"
            raise ConfigError(f"{flag} beside --append: the dataset that is there says it; leave it out")
        if self.fps is not None and self.fps < 1:
            raise ConfigError(f"--fps: {self.fps}: must be 1 or more")
        if self.images not in (None, "png", "video"):
            raise ConfigError(f"--images {self.images}: use png or video")

    def write(self, episodes: Iterable[Trajectory], robot: str) -> None:
        """Raises `DataError`."""
        from rlinf_core.demos.lerobot import append_to_dataset, write_dataset

        if self.append:
            append_to_dataset(self.folder, episodes)
        else:
            images: Images = "video" if self.images == "video" else "png"
            write_dataset(self.folder, episodes, fps=self.fps or FPS, robot=robot, images=images)


@dataclass(frozen=True)
class _Cast:
    """Who plays where: the expert, or the policy of a run's checkpoint under its eyes."""

    simulator: Component
    run: RunConfig | None = None
    checkpoint: Checkpoint | None = None
    expert_share: float = 0.0

    @property
    def player(self) -> str:
        """As a person calls it."""
        if self.run is None:
            return "expert"
        mixed = f" with {self.expert_share:g} of its decisions by the expert" if self.expert_share else ""
        return f"policy{mixed}"


def _cast(options: Options, policy: Path | None, step: str | None, expert_share: float | None) -> _Cast:
    from rlinf_core.config.compose import simulator_of

    if expert_share is not None and not 0.0 <= expert_share <= 1.0:
        raise ConfigError(f"--expert-share: {expert_share:g}: must lie between 0 and 1")
    if policy is not None:
        share = EXPERT_SHARE if expert_share is None else expert_share
        return _of_run(options, policy, step or "latest", share)
    for flag, value in (("--step", step), ("--expert-share", expert_share)):
        if value is not None:
            raise ConfigError(
                f"{flag} {value}: it is about a policy that plays, name its run by --policy RUN"
            )
    component = simulator_of(options)
    _check_expert(component, f"--simulator {component.name}: it")
    return _Cast(component)


def _of_run(options: Options, policy: Path, step: str, expert_share: float) -> _Cast:
    from rlinf_core.config.check import check
    from rlinf_core.config.compose import compose
    from rlinf_core.plugins import plugins
    from rlinf_core.run.evaluating import without_training
    from rlinf_core.run.export import find_checkpoint
    from rlinf_core.run.output import settings_of

    beside = {"--simulator": options.simulator, "--recipe": options.recipe, "--config": options.config}
    for flag, value in beside.items():
        if value:
            raise ConfigError(
                f"{flag} beside --policy {policy}: the simulator is that of the run; leave it out"
            )
    settings = settings_of(policy, "--policy ")
    config = without_training(compose(replace(options, config=(settings,))))
    if config.simulator is None:
        raise ConfigError(
            f"--policy {policy}: its task is one of text, without a simulator whose expert knows better"
        )
    _check_expert(config.simulator, f"--policy {policy}: its simulator {config.simulator.name!r}")
    if not plugins().get("models", config.model.name).provides.demonstrations:
        raise ConfigError(
            f"--policy {policy}: its model {config.model.name!r} does not learn from demonstrations; see "
            "`rlinf plugins show` for models that do (demonstrations=True)"
        )
    check(config, plugins())
    return _Cast(config.simulator, config, find_checkpoint(policy, step), expert_share)


def _play(cast: _Cast, wanted: Recording, target: _Target, envs: int) -> Tally:
    """Everything is written when this returns."""
    from rlinf_core.roles.setup import build
    from rlinf_core.run.recording import Tally, record
    from rlinf_core.run.relabelling import Relabelling, acting

    tally, relabelling = Tally(), None
    with ExitStack() as stack:
        if cast.run is not None and cast.checkpoint is not None:
            act = stack.enter_context(acting(cast.run, cast.checkpoint))
            relabelling = Relabelling(act, cast.expert_share)
        made = build(cast.simulator, envs, wanted.seed)
        stack.callback(made.close)
        target.write(record(made, wanted, tally, relabelling), cast.simulator.name)
    return tally


def _check_expert(component: Component, who: str) -> None:
    """Raise `ConfigError` if the simulator has none."""
    from rlinf_core.plugins import plugins

    def has(name: str) -> bool:
        return bool(plugins().get("simulators", name).provides.expert)

    if not has(component.name):
        others = [
            info.name for info in plugins().info("simulators") if info.status == "ok" and has(info.name)
        ]
        raise ConfigError(f"{who} has no expert to record; those with one: {', '.join(others) or 'none'}")
