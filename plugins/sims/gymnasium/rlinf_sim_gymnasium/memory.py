"""The whole state of an environment as a value: physics, counters and random generators of every layer."""

from __future__ import annotations

import types
from typing import Any

import gymnasium
import numpy as np

from rlinf_core.errors import PluginError
from rlinf_sim_gymnasium.layers import layers
from rlinf_sim_gymnasium.registry import Env

State = list[dict[str, Any]]  # of each layer: attribute -> value
_VALUES = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic, np.random.Generator)
_FIXED = (gymnasium.Env, gymnasium.Space, type, types.ModuleType, types.FunctionType, types.MethodType)


def remember(env: Env) -> State:
    """Raises `PluginError` for an environment that keeps its state out of sight."""
    state = [{name: value for name, value in vars(each).items() if _is_value(value)} for each in layers(env)]
    physics = _physics(env)
    if physics is None:
        _check_visible(env)
    return [*state, {"physics": physics}]


def restore(env: Env, state: State) -> None:
    """Go on from `state` of an environment of the same kind."""
    for layer, values in zip(layers(env), state[:-1], strict=True):
        current = vars(layer)
        for name, value in values.items():
            present = current.get(name)
            if isinstance(present, np.ndarray) and isinstance(value, np.ndarray) and _fits(present, value):
                present[...] = value  # in place: it may be a view of the physics
            else:
                current[name] = value
    physics = state[-1]["physics"]
    if physics is not None:
        import mujoco

        mujoco.mj_copyData(_physics(env), _model(env), physics)


def _fits(present: Any, value: Any) -> bool:
    return bool(present.shape == value.shape and present.dtype == value.dtype and present.flags.writeable)


def _is_value(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_value(part) for part in value.values())
    if isinstance(value, list | tuple):
        return all(_is_value(part) for part in value)
    return isinstance(value, _VALUES)


def _physics(env: Env) -> Any:
    """MuJoCo's data, which holds everything that moves; None where there is none."""
    return next((each.data for each in layers(env) if _is_mujoco(each)), None)  # type: ignore[attr-defined]


def _model(env: Env) -> Any:
    return next(each.model for each in layers(env) if _is_mujoco(each))  # type: ignore[attr-defined]


def _is_mujoco(layer: Any) -> bool:
    own = vars(layer)
    return all(type(own.get(name)).__module__.startswith("mujoco") for name in ("model", "data"))


def _check_visible(env: Env) -> None:
    for layer in layers(env):
        for name, value in vars(layer).items():
            if not (_is_value(value) or isinstance(value, _FIXED) or _is_drawing(value)):
                raise PluginError(
                    f"simulator gymnasium: {env} cannot save its state: {name!r} is a "
                    f"{type(value).__qualname__}; environments of MuJoCo and classic control can"
                )


def _is_drawing(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pygame" or type(value).__name__ == "EnvSpec"
