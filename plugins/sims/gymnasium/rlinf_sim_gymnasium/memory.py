"""The whole state of an environment as a value: physics, counters and random generators of every layer."""

from __future__ import annotations

import math
import types
from typing import Any

import gymnasium
import numpy as np

from rlinf_core.errors import PluginError
from rlinf_sim_gymnasium.layers import layers
from rlinf_sim_gymnasium.registry import Env

State = list[dict[str, Any]]  # of each layer: attribute -> value
_LARGEST = 1 << 16  # bytes of a table of the model that environments change, such as the place of a goal
_VALUES = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic, np.random.Generator)
_FIXED = (gymnasium.Env, gymnasium.Space, type, types.ModuleType, types.FunctionType, types.MethodType)


def remember(env: Env) -> State:
    """Raises `PluginError` for an environment that keeps its state out of sight."""
    state = [{name: value for name, value in vars(each).items() if _is_value(value)} for each in layers(env)]
    found = _physics(env)
    if found is None:
        _check_visible(env)
        return [*state, {}]
    return [*state, _remember_physics(*found)]


def restore(env: Env, state: State) -> None:
    """Go on from `state` of an environment of the same kind."""
    found = _physics(env)
    if found is not None:
        _restore_physics(*found, state[-1])
    for layer, values in zip(layers(env), state[:-1], strict=True):
        current = vars(layer)
        for name, value in values.items():
            if not _overwrite(current.get(name), value):
                current[name] = value


def _remember_physics(model: Any, data: Any) -> dict[str, Any]:
    import mujoco

    whole = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, whole, mujoco.mjtState.mjSTATE_INTEGRATION)
    return {"state": whole, "derived": _arrays(data), "settings": _arrays(model, _LARGEST)}


def _restore_physics(model: Any, data: Any, saved: dict[str, Any]) -> None:
    """What is derived from the state was computed a fraction of a step earlier, and rewards may read it:
    so it is put back too. What still differs in size is worked out anew at the next step."""
    import mujoco

    for name, value in saved["settings"].items():
        _overwrite(getattr(model, name), value)
    mujoco.mj_setState(model, data, saved["state"], mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)
    for name, value in saved["derived"].items():
        _overwrite(getattr(data, name), value)


def _arrays(holder: Any, largest: float = math.inf) -> dict[str, Any]:
    named = {name: getattr(holder, name) for name in dir(holder)}
    return {name: value for name, value in named.items() if _is_array(value) and value.nbytes <= largest}


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and bool(value.flags.writeable)


def _overwrite(present: Any, value: Any) -> bool:
    """In place, since an array may be a view of the physics; False if that is not possible."""
    fits = (
        _is_array(present)
        and isinstance(value, np.ndarray)
        and present.shape == value.shape
        and present.dtype == value.dtype
    )
    if fits:
        present[...] = value
    return fits


def _is_value(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_value(part) for part in value.values())
    if isinstance(value, list | tuple):
        return all(_is_value(part) for part in value)
    return isinstance(value, _VALUES)


def _physics(env: Env) -> tuple[Any, Any] | None:
    """MuJoCo's model and data, which hold everything that moves; None where there are none."""
    return next(((own["model"], own["data"]) for own in map(vars, layers(env)) if _is_mujoco(own)), None)


def _is_mujoco(own: dict[str, Any]) -> bool:
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
