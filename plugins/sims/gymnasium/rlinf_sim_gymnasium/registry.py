"""Finds and makes registered environments, with errors that say what is there."""

from __future__ import annotations

import difflib
import inspect
import os
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rlinf_core.errors import ConfigError, summary
from rlinf_core.functions import load_module
from rlinf_core.media.offscreen import load_mujoco
from rlinf_sim_gymnasium.config import OURS

if TYPE_CHECKING:
    from rlinf_sim_gymnasium.config import GymnasiumConfig

Env = gymnasium.Env[Any, Any]  # observations and actions differ by environment


def registered() -> list[str]:
    """All ids that Gymnasium knows by now."""
    return sorted(gymnasium.registry)


def find(config: GymnasiumConfig) -> EnvSpec:
    """The registered environment. Raises `ConfigError` naming near ids or missing modules."""
    for module in config.imports:
        try:
            load_module(module)
        except Exception as err:  # the user's module may raise anything while it is imported
            raise ConfigError(
                f"simulator.imports (gymnasium): cannot import {module!r}: {summary(err)}; install what "
                "provides it, run where its file is, or leave it out"
            ) from err
    spec = gymnasium.registry.get(config.id)
    if spec is None:
        near = difflib.get_close_matches(config.id, registered(), n=3, cutoff=0.5)
        raise ConfigError(
            f"simulator.id (gymnasium): no environment {config.id!r} is registered"
            + (f"; near names: {', '.join(near)}" if near else "")
            + "; those of other packages need their module in simulator.imports, such as "
            "simulator.imports=[gymnasium_robotics] for Fetch, Hand and Maze"
        )
    if not (config.max_episode_steps or spec.max_episode_steps):
        raise ConfigError(
            f"simulator.max_episode_steps (gymnasium): {config.id} is registered without a limit; set one"
        )
    return spec


def make(config: GymnasiumConfig, spec: EnvSpec) -> Env:
    """One environment. Raises `ConfigError` for arguments it does not take and packages it lacks."""
    try:
        creator = (
            load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        )
        _check_arguments(config, creator)
        drawn = {"render_mode": "rgb_array"} if _renders(creator) else {}
        env: Env = gymnasium.make(
            config.id,
            max_episode_steps=config.max_episode_steps or None,
            disable_env_checker=True,
            **drawn,
            **config.kwargs,
        )
    except ConfigError:
        raise
    except (gymnasium.error.DependencyNotInstalled, ImportError) as err:
        raise ConfigError(f"simulator.id (gymnasium): {config.id} needs a package: {err}") from err
    except Exception as err:  # a constructor may raise anything over its arguments
        if os.environ.get("MUJOCO_GL"):  # and the import of MuJoCo over this
            load_mujoco("gymnasium", "pip install 'mujoco>=3.2'")
        raise ConfigError(
            f"simulator.kwargs (gymnasium): {config.id} cannot be made with {dict(config.kwargs)}: "
            f"{type(err).__name__}: {err}"
        ) from err
    return env


def _renders(creator: Any) -> bool:  # Any: a class or a function
    return "rgb_array" in getattr(creator, "metadata", {}).get("render_modes", ())


def _check_arguments(config: GymnasiumConfig, creator: Any) -> None:
    known, open_ended = _arguments(creator)
    for name in config.kwargs:
        if name not in known and not open_ended:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"simulator.kwargs.{name} (gymnasium): {config.id} takes no {name!r}; it takes "
                f"{', '.join(known)}" + (f". Did you mean {near[0]!r}?" if near else "")
            )


def _arguments(creator: Any) -> tuple[list[str], bool]:
    """Names that a constructor takes, itself or through the ones it passes `**kwargs` on to; and whether
    there may be others."""
    if not inspect.isclass(creator):
        return _named(inspect.signature(creator))
    known: list[str] = []  # each once
    for base in inspect.getmro(creator):
        if "__init__" in vars(base) and issubclass(base, gymnasium.Env):
            own, passes_on = _named(inspect.signature(base.__init__))
            known += [name for name in own[1:] if name not in (*known, *OURS)]  # without self
            if not passes_on:
                return known, False
    return known, True


def _named(signature: inspect.Signature) -> tuple[list[str], bool]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = signature.parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind not in variable]
    return known, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
