"""robosuite itself: imported quietly, what it has by name, and its environments."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlinf_core.errors import ConfigError
from rlinf_core.media.offscreen import graphics, load_mujoco
from rlinf_sim_robosuite.config import RobosuiteConfig

INSTALL = (
    "rlinf plugins install robosuite --isolated (or, where its pins fit: pip install "
    "'rlinf-sim-robosuite[inside]')"
)
FIRST_SEED = 0  # of the scene that environments are built with; episodes have seeds of their own


@functools.cache
def library() -> Any:  # Any: robosuite is untyped
    """The package. Raises `ConfigError` where it is not installed."""
    try:
        with _quiet(), _drawing():
            load_mujoco("robosuite", INSTALL)
            import robosuite
    except ImportError as err:
        raise ConfigError(
            f"simulator robosuite needs robosuite, which cannot be imported: {err}; install it by {INSTALL}"
        ) from err
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)  # else each reset tells of parts
    return robosuite


def tasks() -> list[str]:
    """Names of all tasks."""
    return sorted(library().ALL_ENVIRONMENTS)


def controllers() -> list[str]:
    """Names of composite controllers, then of those of one arm."""
    folder = Path(library().__file__).parent / "controllers/config/default/composite"
    from robosuite.controllers.composite.composite_controller import REGISTERED_COMPOSITE_CONTROLLERS_DICT

    composite = [
        name for name in REGISTERED_COMPOSITE_CONTROLLERS_DICT if (folder / f"{name.lower()}.json").exists()
    ]
    return sorted(composite) + sorted(library().ALL_PART_CONTROLLERS)


def make(config: RobosuiteConfig) -> Any:  # Any: an environment of robosuite
    """One environment. Raises `ConfigError` that names what there is of what was asked for."""
    library()
    from robosuite.environments.base import REGISTERED_ENVS

    _check(config.task, tasks(), "task", "task")
    made = REGISTERED_ENVS[config.task]
    robots = _robots(config, made)
    _check_arguments(config, made)
    controller_configs = [_controller(config.controller, robot) for robot in robots]
    try:
        with _quiet():
            return made(
                robots=robots,
                controller_configs=controller_configs,
                control_freq=config.control_hz,
                horizon=config.max_episode_steps,
                ignore_done=True,
                reward_shaping=config.reward != "sparse",
                hard_reset=config.reload,
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                seed=FIRST_SEED,
                **config.kwargs,
            )
    except Exception as err:  # a constructor may raise anything over a robot or controller that does not fit
        raise ConfigError(
            f"simulator.task (robosuite): {config.task} cannot be made with {' and '.join(robots)}, "
            f"controller {config.controller or 'of the robot'} and {dict(config.kwargs)}: "
            f"{type(err).__name__}: {err}"
        ) from err


def near(name: str, known: Iterable[str]) -> str:
    """The end of a message on a name that does not exist."""
    names = list(known)
    folded = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)
    hint = f"; near names: {', '.join(folded[each] for each in found)}" if found else ""
    return f"{hint}; there are: {', '.join(names)}"


def _check(name: str, known: list[str], option: str, what: str) -> None:
    if name not in known:
        raise ConfigError(f"simulator.{option} (robosuite): there is no {what} {name!r}{near(name, known)}")


def _robots(config: RobosuiteConfig, made: type[Any]) -> list[str]:
    from robosuite.environments.manipulation.two_arm_env import TwoArmEnv
    from robosuite.robots import ROBOT_CLASS_MAPPING
    from robosuite.utils.robot_utils import check_bimanual

    two = issubclass(made, TwoArmEnv)
    robots = list(config.robots) or ["Panda"] * (2 if two else 1)
    for name in robots:
        _check(name, sorted(ROBOT_CLASS_MAPPING), "robots", "robot")
    enough = len(robots) == 2 or (len(robots) == 1 and check_bimanual(robots[0])) if two else len(robots) == 1
    if not enough:
        wanted = "two robots, or one with two arms, such as Baxter" if two else "one robot"
        raise ConfigError(
            f"simulator.robots (robosuite): {config.task} takes {wanted}; these are {', '.join(robots)}"
        )
    return robots


def _controller(name: str, robot: str) -> Any:  # Any: a dictionary as robosuite takes it
    with _quiet():
        if not name:
            return library().load_composite_controller_config(robot=robot)
        if name.endswith(".json"):
            return _controller_of_file(name, robot)
        _check(name, controllers(), "controller", "controller")
        if name not in library().ALL_PART_CONTROLLERS:
            return library().load_composite_controller_config(controller=name)
        return _of_all_arms(library().load_part_controller_config(default_controller=name), robot)


def _controller_of_file(path: str, robot: str) -> Any:  # Any: a dictionary as robosuite takes it
    try:
        part = json.loads(Path(path).expanduser().read_text())
        if "body_parts" in part:
            return library().load_composite_controller_config(controller=str(Path(path).expanduser()))
        return _of_all_arms(part, robot)
    except (OSError, ValueError, TypeError) as err:
        raise ConfigError(
            f"simulator.controller (robosuite): {path} cannot be read as a controller: "
            f"{type(err).__name__}: {err}; there are also: {', '.join(controllers())}"
        ) from err


def _of_all_arms(part: Any, robot: str) -> Any:  # Any: dictionaries as robosuite takes them
    """A controller of one arm, for every arm of a robot; its other parts keep their own."""
    from robosuite.controllers.composite.composite_controller_factory import (
        refactor_composite_controller_config,
    )
    from robosuite.models.robots.robot_model import REGISTERED_ROBOTS

    return refactor_composite_controller_config(part, robot, REGISTERED_ROBOTS[robot].arms)


def _check_arguments(config: RobosuiteConfig, made: type[Any]) -> None:
    known: list[str] = []
    for base in inspect.getmro(made):  # tasks of one object pass on what they do not know
        parameters = inspect.signature(base).parameters.values()
        known += [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        if all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters):
            break
    for name in config.kwargs:
        if name not in known:
            raise ConfigError(
                f"simulator.kwargs.{name} (robosuite): {config.task} takes no {name!r}{near(name, known)}"
            )


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    """Unless the user says what MuJoCo is to draw with, it loads without where nothing can, and robosuite is
    kept from asking for EGL."""
    asked = os.environ.get("MUJOCO_GL")
    try:
        os.environ.setdefault("MUJOCO_GL", graphics("robosuite", "cameras"))
    except ConfigError:
        os.environ.setdefault("MUJOCO_GL", "disable")
    try:
        yield
    finally:
        os.environ.pop("MUJOCO_GL", None)
        if asked is not None:
            os.environ["MUJOCO_GL"] = asked


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """robosuite tells on its console of files that nobody needs, and prints."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(before)
